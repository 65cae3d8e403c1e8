//! Replies to requests for tablet copies: an operator is told that the source has opened a session, or why it has not.

use super::*;
use nyala_proto::kudu::consensus::{StartTabletCopyRequestPb, StartTabletCopyResponsePb};

const SOURCE: usize = 0;
const SINK: usize = 1;

/// A tablet that no server has.
const ABSENT: Uuid = Uuid([0xee; 16]);

/// Starts a server with the default tablet, and an empty one.
async fn with_tablet() -> Group {
    let group = Group::start(2).await;
    group.create(&[SOURCE]).await;
    group.leader(&[SOURCE]).await;
    group
}

/// Returns the request for a copy; without a term it is an operator's.
fn request(group: &Group, tablet: Uuid, caller_term: Option<i64>) -> StartTabletCopyRequestPb {
    let source = group.peer(SOURCE);
    StartTabletCopyRequestPb {
        dest_uuid: Some(schema::id_bytes(&group.uuid(SINK))),
        tablet_id: schema::id_bytes(&tablet),
        copy_peer_uuid: source.permanent_uuid.expect("it has one"),
        copy_peer_addr: source.last_known_addr.expect("it has one"),
        caller_term,
    }
}

/// Sends a request to the sink. The caller waits for this time, and then goes away.
async fn send(
    group: &Group,
    request: &StartTabletCopyRequestPb,
    patience: Duration,
) -> Result<StartTabletCopyResponsePb, RpcError> {
    let deadline = group.env.now().mono.after(patience);
    let (sink, options) = (&group.proxies[SINK], CallOptions::default());
    let called = sink.call(CONSENSUS_SERVICE, "StartTabletCopy", request, deadline, options).await;
    called.map(|response| response.message)
}

async fn error_of(group: &Group, request: &StartTabletCopyRequestPb) -> String {
    let replied = send(group, request, Duration::from_secs(60)).await.expect("a reply");
    error_text(&replied.error)
}

#[tokio::test(start_paused = true)]
async fn an_operator_is_told_why_a_copy_cannot_begin() {
    let group = with_tablet().await;
    let mut errors = vec![error_of(&group, &request(&group, ABSENT, None)).await];
    let copy_peer_uuid = schema::id_bytes(&ABSENT);
    let of_another = StartTabletCopyRequestPb { copy_peer_uuid, ..request(&group, TABLET, None) };
    errors.push(error_of(&group, &of_another).await);
    group.wires.cut(SOURCE);
    let unreachable = error_of(&group, &request(&group, TABLET, None)).await;
    let (attempts, _reason) = unreachable.split_once(" attempts: ").expect("it was tried again");
    errors.push(attempts.to_string());
    let errors = errors.join("\n").replace(&group.uuid(SOURCE).to_string(), "SOURCE");
    expect_test::expect![[r#"
        UNKNOWN_ERROR + NOT_FOUND: unable to begin tablet copy session: TABLET_NOT_FOUND: TABLET_NOT_FOUND: Tablet not found: eeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee
        UNKNOWN_ERROR + INVALID_ARGUMENT: unable to begin tablet copy session: server SOURCE replies at 127.0.0.1:7050, where server eeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee should be; is it of another cluster?
        UNKNOWN_ERROR + SERVICE_UNAVAILABLE: unable to begin tablet copy session: given up after 8
    "#]]
    .assert_eq(&(errors + "\n"));
    // The slots are free at the reply.
    assert!(group.server(SINK).server.tablets.all().is_empty());
    group.wires.join(SOURCE);
    let replied = send(&group, &request(&group, TABLET, None), Duration::from_secs(60)).await;
    assert_eq!(replied.expect("a reply").error, None);
}

#[tokio::test(start_paused = true)]
async fn a_copy_continues_without_the_operator() {
    let group = with_tablet().await;
    group.wires.cut(SOURCE);
    let gone = send(&group, &request(&group, TABLET, None), Duration::from_secs(5)).await;
    assert!(gone.is_err(), "the source cannot be reached yet: {gone:?}");
    group.wires.join(SOURCE);
    group.until("the copy", |group| group.replica(SINK).is_some()).await;
}

/// A leader that waited would hold back its next message.
#[tokio::test(start_paused = true)]
async fn a_leader_does_not_wait_for_the_session() {
    let group = with_tablet().await;
    group.wires.cut(SOURCE);
    let began = group.env.now().mono;
    let replied = send(&group, &request(&group, TABLET, Some(1)), Duration::from_secs(60)).await;
    assert_eq!(replied.expect("a reply").error, None);
    assert!(group.env.now().mono.since(began) < Duration::from_secs(1), "before the first pause ends");
}
