//! A bounded mailbox, read in batches until a deadline. Every event loop of the node waits on one.

use engine::time::Instant;
use tokio::sync::mpsc;

use crate::env::{BoxFuture, Env};

/// Reason why a wait ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitResult {
    /// At least one message was appended to the batch.
    Messages,
    /// The deadline passed first.
    Deadline,
    /// All senders were dropped and all messages were read.
    Closed,
}

/// A timer for deadlines that move: one sleep serves many waits.
#[derive(Default)]
pub struct DeadlineTimer {
    /// Running sleep and its end. It is reused by later waits, because deadlines usually move only a little.
    timer: Option<(Instant, BoxFuture<'static, ()>)>,
}

impl DeadlineTimer {
    /// Returns the output of `future`, or `None` once `deadline` has passed. The future is polled first.
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

    /// Starts a sleep that ends at `deadline` or earlier. After an earlier end the caller starts another one.
    fn arm(&mut self, env: &Env, deadline: Option<Instant>) {
        let Some(deadline) = deadline else { return };
        if self.timer.as_ref().is_none_or(|(until, _)| *until > deadline) {
            self.timer = Some((deadline, env.clock.sleep_until(deadline)));
        }
    }
}

/// Receiving end, owned by one loop.
pub struct Mailbox<T> {
    env: Env,
    inbox: mpsc::Receiver<T>,
    timer: DeadlineTimer,
}

/// Sending end; cheap to clone.
pub struct MailboxSender<T> {
    sender: mpsc::Sender<T>,
}

impl<T> Clone for MailboxSender<T> {
    fn clone(&self) -> MailboxSender<T> {
        MailboxSender { sender: self.sender.clone() }
    }
}

/// Reason why a message was not accepted, with the message.
#[derive(Debug, PartialEq, Eq)]
pub enum SendError<T> {
    /// The mailbox is full.
    Full(T),
    /// The receiving end was closed or dropped.
    Closed(T),
}

/// Creates a mailbox for up to `capacity` unread messages.
pub fn mailbox<T: Send>(env: &Env, capacity: usize) -> (MailboxSender<T>, Mailbox<T>) {
    let (sender, inbox) = mpsc::channel(capacity.max(1));
    (MailboxSender { sender }, Mailbox { env: env.clone(), inbox, timer: DeadlineTimer::default() })
}

impl<T: Send> MailboxSender<T> {
    /// Sends a message; waits while the mailbox is full. Returns the message if the receiving end is closed.
    pub async fn send(&self, message: T) -> Result<(), T> {
        self.sender.send(message).await.map_err(|refused| refused.0)
    }

    /// Sends a message without waiting.
    pub fn try_send(&self, message: T) -> Result<(), SendError<T>> {
        self.sender.try_send(message).map_err(|refused| match refused {
            mpsc::error::TrySendError::Full(message) => SendError::Full(message),
            mpsc::error::TrySendError::Closed(message) => SendError::Closed(message),
        })
    }

    pub fn is_closed(&self) -> bool {
        self.sender.is_closed()
    }
}

impl<T: Send> Mailbox<T> {
    /// Appends up to `limit` messages to `batch`. If none is queued, waits for the first one until `deadline`.
    /// Queued messages are received even after the deadline.
    pub async fn recv_until(
        &mut self,
        deadline: Option<Instant>,
        batch: &mut Vec<T>,
        limit: usize,
    ) -> WaitResult {
        let received = self.inbox.recv_many(batch, limit.max(1));
        match self.timer.until(&self.env, deadline, received).await {
            Some(0) => WaitResult::Closed,
            Some(_) => WaitResult::Messages,
            None => WaitResult::Deadline,
        }
    }

    /// Waits for one message without a deadline. Returns `None` if all senders were dropped.
    pub async fn recv(&mut self) -> Option<T> {
        self.inbox.recv().await
    }

    /// Rejects further messages. Messages sent before can still be received.
    pub fn close(&mut self) {
        self.inbox.close();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::env::mem_net;

    #[tokio::test(start_paused = true)]
    async fn messages_arrive_in_order_and_in_batches() {
        let (sender, mut mailbox) = mailbox(&mem_net::env(), 10);
        for number in 0..5 {
            sender.send(number).await.expect("the mailbox has space");
        }
        let mut batch = Vec::new();
        assert_eq!(mailbox.recv_until(None, &mut batch, 3).await, WaitResult::Messages);
        assert_eq!(mailbox.recv_until(None, &mut batch, 3).await, WaitResult::Messages);
        assert_eq!(batch, [0, 1, 2, 3, 4]);
        drop(sender);
        assert_eq!(mailbox.recv_until(None, &mut batch, 3).await, WaitResult::Closed);
    }

    #[tokio::test(start_paused = true)]
    async fn deadlines_may_move_both_ways() {
        let env = mem_net::env();
        let (sender, mut mailbox) = mailbox::<u8>(&env, 1);
        let mut batch = Vec::new();
        for millis in [100, 10, 500, 0] {
            let deadline = env.now().mono.after(Duration::from_millis(millis));
            assert_eq!(mailbox.recv_until(Some(deadline), &mut batch, 9).await, WaitResult::Deadline);
            let late = env.now().mono.since(deadline);
            assert!(late < Duration::from_millis(2), "{late:?} late for {millis} ms");
        }
        let deadline = env.now().mono.after(Duration::from_secs(1));
        let sending = async {
            env.sleep(Duration::from_millis(300)).await;
            sender.send(7).await.expect("the mailbox has space");
        };
        let (received, ()) = tokio::join!(mailbox.recv_until(Some(deadline), &mut batch, 9), sending);
        assert_eq!((received, batch.as_slice()), (WaitResult::Messages, [7].as_slice()));
        sender.send(8).await.expect("the mailbox has space");
        let past = Some(Instant(0));
        assert_eq!(mailbox.recv_until(past, &mut batch, 9).await, WaitResult::Messages, "late is not lost");
    }

    #[tokio::test(start_paused = true)]
    async fn a_full_or_closed_mailbox_returns_the_message() {
        let (sender, mut mailbox) = mailbox(&mem_net::env(), 1);
        assert_eq!(sender.try_send(1), Ok(()));
        assert_eq!(sender.try_send(2), Err(SendError::Full(2)));
        mailbox.close();
        assert_eq!(sender.try_send(3), Err(SendError::Closed(3)));
        assert_eq!((mailbox.recv().await, mailbox.recv().await), (Some(1), None));
        drop(mailbox);
        assert!(sender.is_closed());
        assert_eq!(sender.send(4).await, Err(4));
    }
}
