//! Sizes and times of a trial of calls.

use std::time::Duration;

use sim_plan::Host;

pub(super) const SERVERS: usize = 2;
pub(super) const CLIENTS: usize = 2;
/// Tasks of a client that call at the same time.
pub(super) const WORKERS: usize = 4;
/// Port of the service.
pub(super) const PORT: u16 = 7000;
/// Time until which disturbances happen, calls begin, and all of them have ended.
pub(super) const DISTURBED: Duration = Duration::from_secs(20);
pub(super) const CALLING: Duration = Duration::from_secs(32);
pub(super) const END: Duration = Duration::from_secs(65);
/// Time in which calls may end when a server stops in order.
pub(super) const GRACE: Duration = Duration::from_millis(300);
/// Bytes of incomplete requests that a server accepts.
pub(super) const INCOMING_BYTES: u64 = 2 << 20;

pub(super) fn server_name(server: usize) -> String {
    Host::Tserver(server as u8).name()
}

pub(super) fn client_name(client: usize) -> String {
    format!("client{client}")
}
