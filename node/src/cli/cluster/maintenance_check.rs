//! Servers out of use in a check: in maintenance mode, quiescing, or both as `drain` leaves them.

use super::observe::{Observation, ObservedServer};

/// Returns a warning for each server that is out of use, with the command that ends it: a drain may be forgotten.
pub(super) fn warnings(seen: &Observation) -> Vec<String> {
    seen.servers.iter().filter_map(warning).collect()
}

fn warning(server: &ObservedServer) -> Option<String> {
    let (id, name) = (server.info.id, server.name());
    let quiescing = server.quiescing.is_some_and(|status| status.quiescing);
    let state = match (server.status.is_ok(), server.info.maintenance, quiescing) {
        // As long as this lasts, the masters wait for it.
        (false, true, _) => format!(
            "down and in maintenance: its replicas are not replaced; start it, or end the mode (nyala cluster \
             maintenance {id} off)"
        ),
        (true, true, true) => format!(
            "in maintenance mode and quiescing: it gets no new replicas and leads no tablet; once the work on it has \
             ended: nyala cluster undrain {id}"
        ),
        (true, true, false) => format!(
            "in maintenance mode: it gets no new replicas, and those there are not replaced; once the work on it has \
             ended: nyala cluster maintenance {id} off"
        ),
        (true, false, true) => {
            format!(
                "quiescing: it leads no tablet; once the work on it has ended: nyala cluster undrain {id}"
            )
        }
        (false, false, _) | (true, false, false) => return None,
    };
    Some(format!("tablet server {name}: {state}"))
}

#[cfg(test)]
mod tests {
    use nyala_client::cluster_admin::QuiescingStatus;

    use super::super::observed_cluster;
    use super::*;

    fn server(n: u8, is_down: bool, maintenance: bool) -> ObservedServer {
        let mut server = observed_cluster::server(n);
        server.info.maintenance = maintenance;
        if is_down {
            server.status = Err("timed out".to_string());
        }
        server
    }

    #[test]
    fn a_server_that_is_out_of_use_is_named_with_the_way_out() {
        let mut absent = server(4, true, true);
        (absent.info.host, absent.info.port) = (String::new(), 0);
        let quiescing = |n: u8, maintenance: bool| {
            let status = QuiescingStatus { quiescing: true, leaders: 0, scanners: 0 };
            ObservedServer { quiescing: Some(status), ..server(n, false, maintenance) }
        };
        let servers = vec![
            server(1, false, true),
            server(2, true, false),
            server(3, true, true),
            absent,
            quiescing(5, true),
            quiescing(6, false),
            server(7, false, false),
        ];
        let seen = Observation { servers, ..Observation::default() };
        insta::assert_snapshot!(warnings(&seen).join("\n"), @r"
        tablet server 01010101010101010101010101010101 ts-1:7050: in maintenance mode: it gets no new replicas, and those there are not replaced; once the work on it has ended: nyala cluster maintenance 01010101010101010101010101010101 off
        tablet server 03030303030303030303030303030303 ts-3:7050: down and in maintenance: its replicas are not replaced; start it, or end the mode (nyala cluster maintenance 03030303030303030303030303030303 off)
        tablet server 04040404040404040404040404040404: down and in maintenance: its replicas are not replaced; start it, or end the mode (nyala cluster maintenance 04040404040404040404040404040404 off)
        tablet server 05050505050505050505050505050505 ts-5:7050: in maintenance mode and quiescing: it gets no new replicas and leads no tablet; once the work on it has ended: nyala cluster undrain 05050505050505050505050505050505
        tablet server 06060606060606060606060606060606 ts-6:7050: quiescing: it leads no tablet; once the work on it has ended: nyala cluster undrain 06060606060606060606060606060606
        ");
    }
}
