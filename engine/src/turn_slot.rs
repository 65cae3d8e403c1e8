//! Turn slot: state that one owner task and many visitors use in turns, without a thread that waits for another.
//!
//! ```text
//!   owner: put ─▶ idle ── visitor: visit, one turn, back ─▶ idle ── owner's event: poll_take ─▶ turn ─▶ put ─▶ …
//!                            └─ poll_take meanwhile: the end of the visit wakes the owner
//! ```
//!
//! - Invariant: at most one turn runs, because the value is inside the slot or with its one user.
//! - Invariant: an owner that found the slot empty, or that a visitor asks to wake, is woken when the value is back.
//! - A visit without an end (its turn panicked) closes the slot: its owner ends, and no turn sees half of the work.
//!
//! *Not here:* the events of the owner, which the value holds; visitors that find no value, which send theirs to it.

use std::ops::{Deref, DerefMut};
use std::task::{Context, Poll, Waker};

use crate::sync::{Mutex, MutexGuard, TurnMeter};

/// Slot of a value; see the module.
#[derive(Debug)]
pub struct TurnSlot<T> {
    content: Mutex<Content<T>>,
}

#[derive(Debug)]
struct Content<T> {
    value: Option<T>,
    /// Waker of the owner, from its last wait.
    owner: Option<Waker>,
    /// True if the owner found no value.
    owner_waits: bool,
    is_closed: bool,
    meter: TurnMeter,
}

impl<T> Default for TurnSlot<T> {
    fn default() -> TurnSlot<T> {
        let meter = TurnMeter::default();
        let content = Content { value: None, owner: None, owner_waits: false, is_closed: false, meter };
        TurnSlot { content: Mutex::new(content) }
    }
}

/// A visitor's turn. The value returns to its slot with [`TurnVisit::end`]; without it the slot is closed.
pub struct TurnVisit<'a, T> {
    slot: &'a TurnSlot<T>,
    value: Option<T>,
}

impl<T> TurnSlot<T> {
    fn content(&self) -> MutexGuard<'_, Content<T>> {
        self.content.lock()
    }

    /// Begins a turn of a visitor. Returns `None` during any other turn, and after [`TurnSlot::close`].
    #[cfg_attr(feature = "contention", track_caller)]
    pub fn visit(&self) -> Option<TurnVisit<'_, T>> {
        let mut content = self.content();
        let value = content.value.take();
        match value.is_some() {
            true => content.meter.enter::<T>(),
            false => content.meter.miss::<T>(),
        }
        Some(TurnVisit { slot: self, value: Some(value?) })
    }

    /// Puts the value in and wakes an owner that waits for it, or that `wakes_owner` asks for.
    pub fn put(&self, value: T, wakes_owner: bool) {
        let mut content = self.content();
        content.meter.leave();
        if content.is_closed {
            drop(content);
            return drop(value);
        }
        content.value = Some(value);
        let wakes = std::mem::take(&mut content.owner_waits) || wakes_owner;
        let owner = content.owner.take_if(|_| wakes);
        drop(content);
        owner.inspect(Waker::wake_by_ref);
    }

    /// Takes the value for the owner once `has_event` is ready; `None` if the slot is closed. Supports one owner.
    #[cfg_attr(feature = "contention", track_caller)]
    pub fn poll_take<R>(
        &self,
        cx: &mut Context<'_>,
        has_event: impl FnOnce(&mut T, &mut Context<'_>) -> Poll<R>,
    ) -> Poll<Option<(T, R)>> {
        let mut content = self.content();
        if content.is_closed {
            return Poll::Ready(None);
        }
        let event = content.value.as_mut().map(|value| has_event(value, cx));
        content.owner_waits = event.is_none();
        if let Some(Poll::Ready(event)) = event {
            content.meter.enter::<T>();
            return Poll::Ready(content.value.take().map(|value| (value, event)));
        }
        if content.owner.as_ref().is_none_or(|owner| !owner.will_wake(cx.waker())) {
            content.owner = Some(cx.waker().clone());
        }
        Poll::Pending
    }

    /// Wakes the owner if it waits: it has an event.
    pub fn wake_owner(&self) {
        let mut content = self.content();
        let owner = content.owner.take();
        drop(content);
        owner.inspect(Waker::wake_by_ref);
    }

    /// Drops the value, now or at the end of its turn. The owner's wait ends.
    pub fn close(&self) {
        let mut content = self.content();
        content.is_closed = true;
        let (value, owner) = (content.value.take(), content.owner.take());
        drop(content);
        drop(value);
        owner.inspect(Waker::wake_by_ref);
    }
}

impl<T> TurnVisit<'_, T> {
    /// Puts the value back. `wakes_owner`: the owner's wait has another end now.
    pub fn end(mut self, wakes_owner: bool) {
        if let Some(value) = self.value.take() {
            self.slot.put(value, wakes_owner);
        }
    }
}

/// Reason why a visit has a value.
const VISITED: &str = "only the end of the visit takes the value";

impl<T> Deref for TurnVisit<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.value.as_ref().expect(VISITED)
    }
}

impl<T> DerefMut for TurnVisit<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.value.as_mut().expect(VISITED)
    }
}

impl<T> Drop for TurnVisit<'_, T> {
    fn drop(&mut self) {
        if self.value.is_some() {
            self.slot.close();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct CountingWaker(AtomicUsize);

    impl Wake for CountingWaker {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A slot with 7 whose owner waits for an event, and the number of wake-ups of the owner.
    fn idle() -> (TurnSlot<u64>, Arc<CountingWaker>) {
        let (slot, wakes) = (TurnSlot::default(), Arc::new(CountingWaker::default()));
        slot.put(7, false);
        assert!(poll(&slot, &wakes, |_, _| Poll::<()>::Pending).is_pending());
        (slot, wakes)
    }

    fn poll<R>(
        slot: &TurnSlot<u64>,
        wakes: &Arc<CountingWaker>,
        has_event: impl FnOnce(&mut u64, &mut Context<'_>) -> Poll<R>,
    ) -> Poll<Option<(u64, R)>> {
        slot.poll_take(&mut Context::from_waker(&Waker::from(wakes.clone())), has_event)
    }

    fn count(wakes: &CountingWaker) -> usize {
        wakes.0.load(Ordering::Relaxed)
    }

    #[test]
    fn a_visit_excludes_others_and_wakes_only_an_owner_that_waits_for_it() {
        let (slot, wakes) = idle();
        let mut visit = slot.visit().expect("it is idle");
        *visit += 1;
        visit.end(false);
        assert_eq!(count(&wakes), 0);
        let visit = slot.visit().expect("it is idle");
        assert!(slot.visit().is_none());
        assert!(poll(&slot, &wakes, |_, _| Poll::Ready(())).is_pending());
        visit.end(false);
        assert_eq!(count(&wakes), 1);
        assert_eq!(poll(&slot, &wakes, |_, _| Poll::Ready("event")), Poll::Ready(Some((8, "event"))));
        assert!(slot.visit().is_none(), "the owner has it");
    }

    #[test]
    fn a_visit_wakes_the_owner_if_it_asks_for_that() {
        let (slot, wakes) = idle();
        slot.visit().expect("it is idle").end(true);
        assert_eq!(count(&wakes), 1);
    }

    #[test]
    fn a_closed_slot_ends_the_wait_of_its_owner_and_takes_no_value_back() {
        let (slot, wakes) = idle();
        let visit = slot.visit();
        slot.close();
        assert_eq!(count(&wakes), 1);
        drop(visit);
        assert!(slot.visit().is_none());
        assert_eq!(poll(&slot, &wakes, |_, _| Poll::Ready(())), Poll::Ready(None));
    }

    #[test]
    fn a_turn_that_panics_closes_the_slot() {
        let (slot, wakes) = idle();
        let visiting = std::panic::AssertUnwindSafe(|| {
            let _visit = slot.visit();
            panic!("on purpose");
        });
        assert!(std::panic::catch_unwind(visiting).is_err());
        assert_eq!(count(&wakes), 1);
        assert_eq!(poll(&slot, &wakes, |_, _| Poll::Ready(())), Poll::Ready(None));
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use std::sync::Arc;
    use std::task::Wake;

    use ::loom::sync::Notify;
    use ::loom::thread;

    use super::*;
    use crate::sync::{AtomicBool, Ordering};

    struct LoomWaker(Notify);

    impl Wake for LoomWaker {
        fn wake(self: Arc<Self>) {
            self.0.notify();
        }
    }

    /// Runs turns of the owner until `ends`.
    fn own(slot: &TurnSlot<u64>, waker: &Arc<LoomWaker>, ends: impl Fn(u64) -> bool) -> u64 {
        let std_waker = Waker::from(waker.clone());
        let mut cx = Context::from_waker(&std_waker);
        loop {
            let has_event = |value: &mut u64, _: &mut Context<'_>| match ends(*value) {
                true => Poll::Ready(()),
                false => Poll::Pending,
            };
            match slot.poll_take(&mut cx, has_event) {
                Poll::Ready(Some((value, ()))) => return value,
                Poll::Ready(None) => panic!("the slot is open"),
                Poll::Pending => waker.0.wait(),
            }
        }
    }

    /// A visitor that finds the slot empty leaves its event and wakes the owner, as an inbox does. No event is lost.
    #[test]
    fn loom_turn_slot_every_event_gets_its_turn() {
        ::loom::model(|| {
            let slot = Arc::new(TurnSlot::default());
            slot.put(0, false);
            let waker = Arc::new(LoomWaker(Notify::new()));
            let inbox = Arc::new([AtomicBool::new(false), AtomicBool::new(false)]);
            let visitors: [_; 2] = std::array::from_fn(|index| {
                let (slot, waker, inbox) = (slot.clone(), waker.clone(), inbox.clone());
                thread::spawn(move || match slot.visit() {
                    Some(mut visit) => {
                        *visit += 1;
                        visit.end(true);
                    }
                    None => {
                        inbox[index].store(true, Ordering::Release);
                        waker.0.notify();
                    }
                })
            });
            let left =
                |value| value + inbox.iter().filter(|sent| sent.load(Ordering::Acquire)).count() as u64;
            own(&slot, &waker, |value| left(value) == 2);
            for visitor in visitors {
                visitor.join().expect("it ends");
            }
        });
    }

    /// A slot that is closed during a visit drops the value at the visit's end, and the wait of its owner ends.
    #[test]
    fn loom_turn_slot_closed_during_a_visit_ends_the_owner() {
        ::loom::model(|| {
            let (slot, value) = (Arc::new(TurnSlot::default()), Arc::new(()));
            slot.put(value.clone(), false);
            let visitor = {
                let slot = slot.clone();
                thread::spawn(move || {
                    if let Some(visit) = slot.visit() {
                        visit.end(false);
                    }
                })
            };
            let closer = {
                let slot = slot.clone();
                thread::spawn(move || slot.close())
            };
            let waker = Arc::new(LoomWaker(Notify::new()));
            let std_waker = Waker::from(waker.clone());
            let mut cx = Context::from_waker(&std_waker);
            while slot.poll_take(&mut cx, |_, _| Poll::<()>::Pending).is_pending() {
                waker.0.wait();
            }
            visitor.join().expect("it ends");
            closer.join().expect("it ends");
            assert_eq!(Arc::strong_count(&value), 1, "the slot has dropped the value");
        });
    }
}
