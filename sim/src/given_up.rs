//! Futures that are given up, as a process that ends in the middle of its work does.

use std::pin::pin;
use std::task::Poll;

/// Polls a future some times; drops it if it is not done by then.
pub(crate) async fn given_up_after<T>(polls: u64, future: impl Future<Output = T>) -> Option<T> {
    let (mut future, mut left) = (pin!(future), polls);
    std::future::poll_fn(|context| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        future.as_mut().poll(context).map(Some)
    })
    .await
}
