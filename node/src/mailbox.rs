//! A bounded inbox that is read in batches, until a deadline: how every loop of the node waits.

use engine::time::Instant;
use tokio::sync::mpsc;

use crate::env::{BoxFuture, Env};

/// How a wait ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Received {
    /// At least one message was put into the batch.
    Messages,
    /// The deadline passed first.
    Deadline,
    /// Every sender is gone and every message was read.
    Closed,
}

/// A deadline that moves: one sleep serves many waits.
#[derive(Default)]
pub struct Alarm {
    /// The sleep last begun and when it ends; kept from wait to wait, for deadlines mostly move a little.
    timer: Option<(Instant, BoxFuture<'static, ()>)>,
}

impl Alarm {
    /// What `future` gives, or `None` once `deadline` has passed. The future is polled first.
    pub async fn until<T>(
        &mut self,
        env: &Env,
        deadline: Option<Instant>,
        future: impl Future<Output = T>,
    ) -> Option<T> {
        tokio::pin!(future);
        loop {
            self.arm(env, deadline);
            let armed = self.timer.is_some() && deadline.is_some();
            let timer = async {
                match &mut self.timer {
                    Some((_, sleep)) if armed => sleep.await,
                    _ => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                done = &mut future => return Some(done),
                () = timer => {}
            }
            self.timer = None;
            if deadline.is_some_and(|deadline| env.now().mono >= deadline) {
                return None;
            }
        }
    }

    /// Begins a sleep that ends at `deadline` or before; one that ends before is begun again when it does.
    fn arm(&mut self, env: &Env, deadline: Option<Instant>) {
        let Some(deadline) = deadline else { return };
        if self.timer.as_ref().is_none_or(|(until, _)| *until > deadline) {
            self.timer = Some((deadline, env.clock.sleep_until(deadline)));
        }
    }
}

/// The reading end, owned by one loop.
pub struct Mailbox<T> {
    env: Env,
    inbox: mpsc::Receiver<T>,
    alarm: Alarm,
}

/// The writing end; clone it freely.
pub struct Sender<T> {
    outbox: mpsc::Sender<T>,
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Sender<T> {
        Sender { outbox: self.outbox.clone() }
    }
}

/// Why a message was not taken; it is given back.
#[derive(Debug, PartialEq, Eq)]
pub enum Refused<T> {
    /// The inbox is full.
    Full(T),
    /// Its owner is gone.
    Closed(T),
}

/// A mailbox that holds up to `capacity` unread messages.
pub fn mailbox<T: Send>(env: &Env, capacity: usize) -> (Sender<T>, Mailbox<T>) {
    let (outbox, inbox) = mpsc::channel(capacity.max(1));
    (Sender { outbox }, Mailbox { env: env.clone(), inbox, alarm: Alarm::default() })
}

impl<T: Send> Sender<T> {
    /// Waits for room. The message comes back if the owner is gone.
    pub async fn send(&self, message: T) -> Result<(), T> {
        self.outbox.send(message).await.map_err(|refused| refused.0)
    }

    /// Does not wait.
    pub fn try_send(&self, message: T) -> Result<(), Refused<T>> {
        self.outbox.try_send(message).map_err(|refused| match refused {
            mpsc::error::TrySendError::Full(message) => Refused::Full(message),
            mpsc::error::TrySendError::Closed(message) => Refused::Closed(message),
        })
    }

    pub fn is_closed(&self) -> bool {
        self.outbox.is_closed()
    }
}

impl<T: Send> Mailbox<T> {
    /// Appends up to `limit` messages to `batch`: those that are there, or the first to come before `deadline`.
    /// Messages that are there are taken even after the deadline.
    pub async fn recv_until(
        &mut self,
        deadline: Option<Instant>,
        batch: &mut Vec<T>,
        limit: usize,
    ) -> Received {
        let received = self.inbox.recv_many(batch, limit.max(1));
        match self.alarm.until(&self.env, deadline, received).await {
            Some(0) => Received::Closed,
            Some(_) => Received::Messages,
            None => Received::Deadline,
        }
    }

    /// Waits for one message, however long; `None` when every sender is gone.
    pub async fn recv(&mut self) -> Option<T> {
        self.inbox.recv().await
    }

    /// Takes nothing more; what was sent before can still be read.
    pub fn close(&mut self) {
        self.inbox.close();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::env::memory;

    #[tokio::test(start_paused = true)]
    async fn messages_come_in_order_and_in_batches() {
        let (sender, mut mailbox) = mailbox(&memory::env(), 10);
        for number in 0..5 {
            sender.send(number).await.expect("there is room");
        }
        let mut batch = Vec::new();
        assert_eq!(mailbox.recv_until(None, &mut batch, 3).await, Received::Messages);
        assert_eq!(mailbox.recv_until(None, &mut batch, 3).await, Received::Messages);
        assert_eq!(batch, [0, 1, 2, 3, 4]);
        drop(sender);
        assert_eq!(mailbox.recv_until(None, &mut batch, 3).await, Received::Closed);
    }

    #[tokio::test(start_paused = true)]
    async fn deadlines_may_move_both_ways() {
        let env = memory::env();
        let (sender, mut mailbox) = mailbox::<u8>(&env, 1);
        let mut batch = Vec::new();
        for millis in [100, 10, 500, 0] {
            let deadline = env.now().mono.after(Duration::from_millis(millis));
            assert_eq!(mailbox.recv_until(Some(deadline), &mut batch, 9).await, Received::Deadline);
            let late = env.now().mono.since(deadline);
            assert!(late < Duration::from_millis(2), "{late:?} late for {millis} ms");
        }
        let deadline = env.now().mono.after(Duration::from_secs(1));
        let sending = async {
            env.sleep(Duration::from_millis(300)).await;
            sender.send(7).await.expect("there is room");
        };
        let (received, ()) = tokio::join!(mailbox.recv_until(Some(deadline), &mut batch, 9), sending);
        assert_eq!((received, batch.as_slice()), (Received::Messages, [7].as_slice()));
        sender.send(8).await.expect("there is room");
        let past = Some(Instant(0));
        assert_eq!(mailbox.recv_until(past, &mut batch, 9).await, Received::Messages, "late is not lost");
    }

    #[tokio::test(start_paused = true)]
    async fn a_full_or_abandoned_inbox_gives_the_message_back() {
        let (sender, mut mailbox) = mailbox(&memory::env(), 1);
        assert_eq!(sender.try_send(1), Ok(()));
        assert_eq!(sender.try_send(2), Err(Refused::Full(2)));
        mailbox.close();
        assert_eq!(sender.try_send(3), Err(Refused::Closed(3)));
        assert_eq!((mailbox.recv().await, mailbox.recv().await), (Some(1), None));
        drop(mailbox);
        assert!(sender.is_closed());
        assert_eq!(sender.send(4).await, Err(4));
    }
}
