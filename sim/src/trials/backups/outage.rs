//! An outage of a server, which the client of the trial orders and the driver of the world makes.

use std::time::Duration;

use engine::sync::Mutex;
use nyala_common::env::Env;
use sim_plan::Host;

/// Pause in which the client waits for the driver.
const PAUSE: Duration = Duration::from_millis(10);

/// Stage of the outage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Stage {
    #[default]
    None,
    /// Ordered of a server, for this long.
    Ordered(Host, Duration),
    Down,
}

#[derive(Default)]
pub(super) struct Outage {
    stage: Mutex<Stage>,
}

impl Outage {
    /// Orders an outage, and waits until it has begun.
    pub(super) async fn order(&self, env: &Env, server: Host, span: Duration) {
        *self.stage.lock() = Stage::Ordered(server, span);
        while matches!(*self.stage.lock(), Stage::Ordered(..)) {
            env.sleep(PAUSE).await;
        }
    }

    /// Waits until the server is up again.
    pub(super) async fn wait_until_over(&self, env: &Env) {
        while *self.stage.lock() != Stage::None {
            env.sleep(PAUSE).await;
        }
    }

    /// Returns the server and the span of an outage that begins now, if one was ordered.
    pub(super) fn begin(&self) -> Option<(Host, Duration)> {
        let mut stage = self.stage.lock();
        let Stage::Ordered(server, span) = *stage else { return None };
        *stage = Stage::Down;
        Some((server, span))
    }

    pub(super) fn end(&self) {
        *self.stage.lock() = Stage::None;
    }
}
