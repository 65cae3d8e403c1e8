//! Tablet servers of another cluster: the catalog gives them no replicas.

use engine::catalog::{
    Catalog, CatalogConfig, CatalogEffects, CatalogEvent, EventResult, Heartbeat, HeartbeatReply,
    TserverContact, TserverRegistration,
};
use engine::ids::{PeerId, Uuid};
use engine::time::{ClockReading, Instant};
use engine_testkit::catalog_script::{address, server};

const OTHER_CLUSTER: Uuid = Uuid([9; 16]);

fn catalog() -> Catalog {
    Catalog::load(CatalogConfig::default(), [1, 2], ClockReading::default(), []).expect("nothing to load")
}

fn registration(name: &str) -> TserverRegistration {
    TserverRegistration { rpc: vec![address(name)], ..TserverRegistration::default() }
}

fn contact(name: &str, cluster: Option<Uuid>) -> TserverContact {
    TserverContact {
        id: server(name),
        instance: 1,
        registration: registration(name),
        location: None,
        cluster,
        last_heartbeat: Instant::default(),
        last_report: None,
    }
}

fn servers(catalog: &Catalog) -> Vec<PeerId> {
    catalog.servers(Instant::default()).map(|server| server.id).collect()
}

fn beat(catalog: &mut Catalog, heartbeat: Heartbeat) -> HeartbeatReply {
    let mut out = CatalogEffects::default();
    let event = CatalogEvent::Heartbeat { ticket: 1, heartbeat: Box::new(heartbeat) };
    catalog.step(ClockReading::default(), event, &mut out);
    match out.replies.remove(0).result {
        EventResult::Heartbeat(reply) => reply,
        other => panic!("{other:?} is no reply to a heartbeat"),
    }
}

#[test]
fn a_new_leader_imports_only_servers_that_may_be_of_its_cluster() {
    let mut catalog = catalog();
    let own = catalog.cluster_id();
    catalog.import_contact(contact("a", None));
    catalog.import_contact(contact("b", Some(own)));
    catalog.import_contact(contact("c", Some(OTHER_CLUSTER)));
    assert_eq!(servers(&catalog), [server("a"), server("b")]);
}

#[test]
fn a_server_that_turns_out_to_be_of_another_cluster_is_forgotten() {
    let mut catalog = catalog();
    let registering =
        |name: &str| Heartbeat { registration: Some(registration(name)), ..Heartbeat::of(server(name), 1) };
    beat(&mut catalog, registering("a"));
    beat(&mut catalog, registering("b"));
    let foreign = Heartbeat { cluster: Some(OTHER_CLUSTER), ..Heartbeat::of(server("a"), 1) };
    assert!(beat(&mut catalog, foreign).foreign);
    assert_eq!(servers(&catalog), [server("b")]);
    assert!(beat(&mut catalog, Heartbeat::of(server("a"), 1)).needs_registration);
}
