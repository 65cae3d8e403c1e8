//! The outage of a server that the script asks for in the quiet end.

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outage {
    /// The server is to stop.
    Begins(usize),
    Lasts,
    /// The server is to start.
    Ends(usize),
}
