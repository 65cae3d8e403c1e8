//! Sizes and times of a masters trial.

use std::time::Duration;

use engine::catalog::CatalogConfig;
use engine::ids::Uuid;
use sim_plan::{Host, SecuritySpec};

use crate::workload::MASTER_PORT;

pub(super) const MASTERS: usize = 3;
pub(super) const SERVERS: usize = 5;
/// Locations of the servers: none needs to have two of three replicas.
const LOCATIONS: [&str; SERVERS] = ["/a", "/a", "/b", "/b", "/c"];
/// Identities that a server may have, one after another: each of them has its location.
pub(super) const IDENTITIES: u8 = 5;

/// Time until masters lead and servers are registered, and until faults end.
pub(super) const BEGINNING: Duration = Duration::from_secs(5);
pub(super) const FAULTS_END: Duration = Duration::from_secs(28);
/// Time within which the quiet end comes to its end.
pub(super) const END: Duration = Duration::from_secs(230);
/// Step of time between two looks of the driver.
pub(super) const TICK: Duration = Duration::from_millis(50);
/// Timeout of a call.
pub(super) const CALL: Duration = Duration::from_secs(2);

/// Silence after which a server gets no replicas.
pub(super) const UNRESPONSIVE: Duration = Duration::from_secs(6);
/// Silence up to which a server counts as alive at each master, also at one that was long loading its catalog.
pub(super) const ALIVE: Duration = Duration::from_millis(2_500);
/// Time after which masters have noticed all that changed, and have recovered from a fault.
pub(super) const SETTLED: Duration = Duration::from_secs(4);
/// Absence after which a leader calls a member failed.
pub(super) const FAILED: Duration = Duration::from_secs(8);
/// Time within which a server that is up gets a replica that it was to have from the beginning. The leader would have
/// it copied there later.
pub(super) const CREATED_WITHIN: Duration = Duration::from_secs(5);
pub(super) const COPIED_AFTER: Duration = Duration::from_secs(20);
/// Time for which clients may keep locations.
pub(super) const LOCATIONS_TTL_MILLIS: u32 = 77_000;

/// Name of the only column of tables.
pub(super) const COLUMN: &str = "k";
/// User to whom no policy applies, and who may do everything.
pub(super) const TRUSTED: &str = "boss";
/// File of the policy.
pub(super) const POLICY: &str = "policy.toml";

/// Validity of tokens and rotation of their keys: some eight keys in a trial.
pub(super) const SECURITY: SecuritySpec = SecuritySpec {
    authn: Duration::from_secs(7),
    authz: Duration::from_secs(5),
    rotation: Duration::from_secs(4),
};

/// Returns the settings of the masters' catalogs.
pub(super) fn catalog(of: CatalogConfig) -> CatalogConfig {
    CatalogConfig {
        tablet_creation_timeout: Duration::from_secs(10),
        server_unresponsive_after: UNRESPONSIVE,
        retry_wait_max: Duration::from_secs(1),
        ..of
    }
}

/// Returns the id of a server's identity of a number.
pub(super) fn server_id(server: usize, identity: u8) -> Uuid {
    Uuid([server as u8 + 1 + 16 * identity; 16])
}

pub(super) fn location(server: usize) -> &'static str {
    LOCATIONS[server]
}

/// Returns the locations of all identities, as masters are configured with them.
pub(super) fn locations() -> Vec<String> {
    let of = |server| (0..IDENTITIES).map(move |identity| (server, identity));
    let entry = |(server, identity)| format!("{}={}", server_id(server, identity), location(server));
    (0..SERVERS).flat_map(of).map(entry).collect()
}

/// Returns the host of a master.
pub(super) fn master(number: usize) -> Host {
    Host::Master(number as u8)
}

/// Returns the address of a master.
pub(super) fn master_address(number: usize) -> String {
    format!("{}:{MASTER_PORT}", master(number))
}
