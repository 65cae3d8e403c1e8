//! Names of an access trial: its server and its users.

use sim_plan::Host;

pub(super) const SERVER: Host = Host::Tserver(0);
/// User of the calls.
pub(super) const CALLER: &str = "caller";
/// User whose tools need no tokens.
pub(super) const SUPERUSER: &str = "operator";
