//! State of a server for the process manager that started it, such as systemd.

/// State that a process manager waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServiceState {
    /// Requests are answered.
    Ready,
    /// The server shuts down.
    Stopping,
}

/// Receiver of the states of a server.
pub type ReportState = dyn Fn(ServiceState) + Send + Sync;
