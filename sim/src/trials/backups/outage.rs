//! An outage of the tablet server, which the client of the trial orders and the driver of the world makes.

use std::time::Duration;

use engine::sync::Mutex;

/// Stage of the outage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Stage {
    #[default]
    None,
    /// Ordered, for this long.
    Ordered(Duration),
    Down,
}

#[derive(Default)]
pub(super) struct Outage {
    stage: Mutex<Stage>,
}

impl Outage {
    pub(super) fn order(&self, span: Duration) {
        *self.stage.lock() = Stage::Ordered(span);
    }

    /// Returns the span of an outage that begins now, if one was ordered.
    pub(super) fn begin(&self) -> Option<Duration> {
        let mut stage = self.stage.lock();
        let Stage::Ordered(span) = *stage else { return None };
        *stage = Stage::Down;
        Some(span)
    }

    pub(super) fn end(&self) {
        *self.stage.lock() = Stage::None;
    }

    pub(super) fn is_ordered(&self) -> bool {
        matches!(*self.stage.lock(), Stage::Ordered(_))
    }

    pub(super) fn is_over(&self) -> bool {
        *self.stage.lock() == Stage::None
    }
}
