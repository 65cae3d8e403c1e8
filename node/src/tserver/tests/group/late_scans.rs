//! Scans that gave up their call's slot to wait for a snapshot: as many read at once as calls run at once.

use super::*;
use engine::time::Timestamp;

#[tokio::test(start_paused = true)]
async fn scans_that_waited_for_their_snapshot_read_a_few_at_a_time() {
    let group = Group::start(3).await;
    group.create(&ALL).await;
    let leader = group.leader(&ALL).await;
    let follower = others(&ALL, leader)[0];
    let written = group.write(leader, &[insert(1, "a")]).await;
    let server = &group.server(follower).server;
    let until = group.env.now().mono.after(Duration::from_secs(60));
    let mut places = Vec::new();
    for _ in 0..server.config.rpc.concurrency {
        places.push(server.late_scan(until).await.expect("a place"));
    }
    // A tenth of a second later: the follower waits until its leader says that the snapshot is complete.
    let later = snapshot_scan(written.timestamp() + Timestamp::from_micros(100_000).0);
    let (request, options) = (open(later.clone()), CallOptions::default());
    let scan = group.try_call::<_, ScanResponsePb>(follower, CLIENT_SERVICE, "Scan", &request, options);
    let refused = scan.await.expect_err("all places are taken");
    assert!(refused.is_busy() && refused.to_string().contains("too many scans read at once"), "{refused}");
    drop(places.pop());
    assert_eq!(group.keys(follower, later).await, [1]);
}
