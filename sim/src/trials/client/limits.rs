//! Sizes and times of a client trial.

use std::time::Duration;

pub(super) const TABLE: &str = "trial";
pub(super) const MASTERS: usize = 3;
pub(super) const SERVERS: usize = 4;
/// Tasks of the client, which write different keys.
pub(super) const WORKERS: u64 = 3;
pub(super) const CLIENT: &str = "client";
/// Time until which the double's conditions change.
pub(super) const DISTURBED: Duration = Duration::from_secs(60);
/// Time until which operations begin.
pub(super) const END: Duration = Duration::from_secs(75);
/// Time limits of an operation and of an attempt.
pub(super) const OP_TIMEOUT: Duration = Duration::from_secs(15);
pub(super) const RPC_TIMEOUT: Duration = Duration::from_secs(1);
/// Time within which the client finds leaders that serve.
pub(super) const SETTLE: Duration = Duration::from_secs(9);
/// Time within which a reply arrives.
pub(super) const PROPAGATION: Duration = Duration::from_millis(100);
/// Size of a response that the first operation of a client asks for: the number of the operation is added to it.
pub(super) const FIRST_BATCH: u32 = 1_000;
