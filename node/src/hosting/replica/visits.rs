//! Turns of an idle replica on the tasks of its callers, and the loop's own task.
//!
//! ```text
//!   command ─▶ idle, inbox empty, small? ── yes ─▶ turn on the caller's task: log, apply, reply ─▶ idle
//!                        └─ no ─▶ inbox ─▶ the loop's task: one turn for all that wait
//! ```
//!
//! A wake-up of the loop and one of its caller cost more than a small turn. During any other turn, commands collect in
//! the inbox, so that operations under load still share turns.
//!
//! - Invariant: a visitor takes no command of others, and never waits: it works as the loop does between two waits.
//! - Invariant: the loop's alarm is at most as late as the deadline that a visit leaves.
//! - A turn that may take long, that ends the replica or that follows queued commands is the loop's.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};

use engine::time::Instant;
use engine::turn_slot::TurnSlot;
use tokio::sync::mpsc;

use super::event_loop::{NEVER, ReplicaLoop, TURN_MAX, TurnCost};
use super::shared::{Command, EventSender, stopped};
use crate::hosting::log_writer;
use nyala_common::mailbox::DeadlineTimer;

/// State of a loop between its turns.
pub(super) type LoopSlot = TurnSlot<Box<ReplicaLoop>>;

/// Runs a turn with `command` on this task if the replica is idle. Otherwise returns the command, for the inbox.
pub(super) fn visit(slot: &LoopSlot, command: Command) -> Option<Command> {
    let Some(mut state) = slot.visit() else { return Some(command) };
    if !state.takes_visit(&command) {
        state.end(false);
        return Some(command);
    }
    state.shared.env.observer.mark("replica: turn on the task of a caller");
    let mut commands = std::mem::take(&mut state.visit_buffer);
    commands.push(command);
    state.turn(&mut commands);
    state.visit_buffer = commands;
    state.finish_turn();
    state.try_hibernate();
    let next = state.next_wake();
    let is_late = |next: Instant| state.alarm_at.is_none_or(|alarm| next < alarm);
    let wakes_owner = next.is_some_and(is_late);
    state.is_alarm_late = wakes_owner;
    state.end(wakes_owner);
    None
}

/// Returns a sender of events to the loop of a slot.
pub(super) fn event_sender(slot: &Arc<LoopSlot>, inbox: &mpsc::UnboundedSender<Command>) -> EventSender {
    let slot = Arc::downgrade(slot);
    let visit = move |command| slot.upgrade().and_then(|slot| visit(&slot, command));
    EventSender::new(inbox.downgrade(), Arc::new(visit))
}

/// Empties the slot when the loop's task ends, also if that is aborted.
struct SlotOwner(Arc<LoopSlot>);

impl Drop for SlotOwner {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl SlotOwner {
    /// Waits for commands, or until the alarm. Returns the state, and false if no command can follow; `None` if a turn
    /// of a visitor panicked.
    async fn wait(
        &self,
        state: Box<ReplicaLoop>,
        alarm: &mut DeadlineTimer,
        commands: &mut Vec<Command>,
    ) -> Option<(Box<ReplicaLoop>, bool)> {
        let (env, alarm_at) = (state.shared.env.clone(), state.alarm_at);
        let slot = &self.0;
        slot.put(state, false);
        let received = poll_fn(|cx| slot.poll_take(cx, |state, cx| state.poll_commands(cx, commands)));
        match alarm.until(&env, alarm_at, received).await {
            Some(received) => received,
            None => poll_fn(|cx| slot.poll_take(cx, |_, _| Poll::Ready(true))).await,
        }
    }
}

/// Runs the loop until it is stopped or its last handle is dropped.
pub(super) async fn run(slot: Arc<LoopSlot>, mut state: Box<ReplicaLoop>) {
    let owner = SlotOwner(slot);
    let mut alarm = DeadlineTimer::default();
    let mut commands = Vec::new();
    // Effects of the start.
    state.turn(&mut commands);
    state.deliver();
    loop {
        state.alarm_at = state.next_wake();
        state.try_hibernate();
        match owner.wait(state, &mut alarm, &mut commands).await {
            Some((taken, true)) => state = taken,
            Some((_, false)) | None => return,
        }
        let env = state.shared.env.clone();
        match state.begin_turn(&commands) {
            TurnCost::Light => state.turn(&mut commands),
            TurnCost::Brief => env.run_brief(|| state.turn(&mut commands)).await,
            TurnCost::Heavy => env.run(|| state.turn(&mut commands)).await,
        }
        state.finish_turn();
        if state.is_done() {
            return state.close().await;
        }
    }
}

impl ReplicaLoop {
    /// Takes queued commands. Returns false if no more can follow.
    fn poll_commands(&mut self, cx: &mut Context<'_>, commands: &mut Vec<Command>) -> Poll<bool> {
        if std::mem::take(&mut self.is_alarm_late) {
            return Poll::Ready(true);
        }
        self.inbox.poll_recv_many(cx, commands, TURN_MAX).map(|count| count > 0)
    }

    /// Returns the time at which the loop must run without a command.
    fn next_wake(&self) -> Option<Instant> {
        let deadline = Some(self.deadline()).filter(|deadline| *deadline < NEVER);
        // A failed replica writes no more, and a retry without operations writes nothing: neither clears its time.
        let writes = self.shared.failure().is_none() && log_writer::has_operations(&self.effects.log);
        let retry = self.retry.at().filter(|_| writes);
        deadline.into_iter().chain(retry).min()
    }

    /// Returns true, and counts the command, if a visitor may run a turn with it.
    fn takes_visit(&mut self, command: &Command) -> bool {
        let (cost, received) = self.turn_cost(std::slice::from_ref(command));
        let takes = cost != TurnCost::Heavy
            && self.inbox.is_empty()
            && self.stopping.is_none()
            && self.shared.failure().is_none();
        if takes {
            self.received_bytes = received;
        }
        takes
    }

    /// Counts the commands of the next turn and returns its cost.
    fn begin_turn(&mut self, commands: &[Command]) -> TurnCost {
        let (cost, received) = self.turn_cost(commands);
        self.received_bytes = received;
        cost
    }

    /// Sends the results of a turn, and rejects the callers that can get none.
    fn finish_turn(&mut self) {
        self.deliver();
        if let Some(error) = self.shared.failure() {
            self.refuse(&error);
        }
        if self.stopping.is_some() && !self.can_finish_alone() {
            self.refuse(&stopped());
        }
    }

    /// Returns true if the loop is to end.
    fn is_done(&self) -> bool {
        self.stopping.is_some() && self.proposals.is_empty()
    }
}
