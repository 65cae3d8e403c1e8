//! Machines of a simulated cluster.

use std::fmt;

use crate::line_format::LineField;

/// A machine by its role and number: `m0` a master, `t2` a tablet server, `c1` a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Host {
    Master(u8),
    Tserver(u8),
    Client(u8),
}

impl Host {
    /// Returns the host's name in the simulated network.
    pub fn name(self) -> String {
        self.to_string()
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Host::Master(number) => write!(f, "m{number}"),
            Host::Tserver(number) => write!(f, "t{number}"),
            Host::Client(number) => write!(f, "c{number}"),
        }
    }
}

impl LineField for Host {
    fn text(&self) -> String {
        self.to_string()
    }

    fn parse(text: &str) -> Option<Host> {
        let number = text.get(1..)?.parse().ok()?;
        match text.get(..1)? {
            "m" => Some(Host::Master(number)),
            "t" => Some(Host::Tserver(number)),
            "c" => Some(Host::Client(number)),
            _ => None,
        }
    }
}
