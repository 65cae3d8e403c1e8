use engine::sync::Mutex;

use engine::ids::{PeerId, TabletId};
use engine::note::Note;
use engine::observer::{Observer, ObserverHandle};
use engine::time::Instant;
use tokio::sync::mpsc;

use super::*;

/// Times of failed heartbeats.
struct Failures {
    env: Env,
    error_text: Mutex<mpsc::UnboundedSender<Instant>>,
}

impl Observer for Failures {
    fn mark(&self, mark: &'static str) {
        if mark == "heartbeat: failed" {
            let _ = self.error_text.lock().send(self.env.now().mono);
        }
    }

    fn note(&self, _: PeerId, _: TabletId, _: &Note) {}
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unreachable_master_is_not_called_in_a_loop_by_a_server_with_changes() {
    let env = OsEnv::new(&OsOptions::default()).expect("the real world");
    let (error_text, mut failures) = mpsc::unbounded_channel();
    let observer =
        ObserverHandle::new(Arc::new(Failures { env: env.clone(), error_text: Mutex::new(error_text) }));
    // No server listens at this address.
    let away = |config: &mut TserverConfig| {
        config.masters = vec!["127.0.0.1:1".to_string()];
        config.heartbeat_interval_ms = 20;
    };
    let fixture = Fixture::in_env(Env { observer, ..env }, away).await;
    fixture.create_tablet().await;
    let mut at = Vec::new();
    while at.len() < 5 {
        at.push(failures.recv().await.expect("it tries on"));
    }
    let pauses = at.windows(2).map(|pair| pair[1].since(pair[0]));
    assert!(pauses.min().expect("four") >= Duration::from_millis(20), "{at:?}");
}
