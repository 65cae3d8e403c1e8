//! Maintenance mode in a check: servers whose replicas are not replaced.

use super::observe::{Observation, ObservedServer};

/// Returns a warning for each server that is down in maintenance mode: as long as this lasts, the masters wait for it.
pub(super) fn warnings(seen: &Observation) -> Vec<String> {
    let is_waited_for = |server: &&ObservedServer| server.status.is_err() && server.info.maintenance;
    let warning = |server: &ObservedServer| {
        let (id, name) = (server.info.id, server.name());
        format!(
            "tablet server {name}: down and in maintenance: its replicas are not replaced; start it, or end the mode \
             (nyala cluster maintenance {id} off)"
        )
    };
    seen.servers.iter().filter(is_waited_for).map(warning).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use engine::ids::Uuid;
    use nyala_client::cluster_admin::ServerStatus;
    use nyala_client::replica_admin::ServerInfo;

    use super::*;

    fn server(n: u8, is_down: bool, maintenance: bool) -> ObservedServer {
        let id = Uuid([n; 16]);
        let status = ServerStatus { id, version: "nyala 1".to_string(), web: Vec::new() };
        ObservedServer {
            info: ServerInfo {
                id,
                host: format!("ts-{n}"),
                port: 7050,
                https: false,
                location: None,
                silent_for: Duration::ZERO,
                maintenance,
            },
            status: if is_down { Err("timed out".to_string()) } else { Ok(status) },
            quiescing: None,
            replicas: BTreeMap::new(),
            raft: BTreeMap::new(),
        }
    }

    #[test]
    fn a_server_that_is_down_in_maintenance_mode_is_named_with_the_way_out() {
        let mut absent = server(4, true, true);
        (absent.info.host, absent.info.port) = (String::new(), 0);
        let servers = vec![server(1, false, true), server(2, true, false), server(3, true, true), absent];
        let seen = Observation { servers, ..Observation::default() };
        insta::assert_snapshot!(warnings(&seen).join("\n"), @r"
        tablet server 03030303030303030303030303030303 ts-3:7050: down and in maintenance: its replicas are not replaced; start it, or end the mode (nyala cluster maintenance 03030303030303030303030303030303 off)
        tablet server 04040404040404040404040404040404: down and in maintenance: its replicas are not replaced; start it, or end the mode (nyala cluster maintenance 04040404040404040404040404040404 off)
        ");
    }
}
