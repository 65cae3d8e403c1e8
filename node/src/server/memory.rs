//! Where a server's memory is: a tree of trackers, shown by tools and on the web port.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

/// Counts the bytes of one consumer, or adds up those below it.
pub struct MemTracker {
    id: String,
    parent_id: Option<String>,
    /// Bytes it may hold, if limited.
    limit: Option<u64>,
    usage: Usage,
    peak: AtomicI64,
    children: Mutex<Vec<Weak<MemTracker>>>,
}

enum Usage {
    /// Told by its owner; those below it are part of it.
    Told(AtomicI64),
    /// Asked for.
    Asked(Box<dyn Fn() -> u64 + Send + Sync>),
    /// The sum of those below.
    Sum,
}

/// One tracker as it was when looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemUsage {
    pub id: String,
    pub parent_id: Option<String>,
    pub limit: Option<u64>,
    pub bytes: i64,
    pub peak_bytes: i64,
    pub children: Vec<MemUsage>,
}

impl MemTracker {
    /// The server's own; its bytes are the sum of those below.
    pub fn root(limit: Option<u64>) -> Arc<MemTracker> {
        MemTracker::new("server", None, limit, Usage::Sum)
    }

    fn new(id: &str, parent_id: Option<String>, limit: Option<u64>, usage: Usage) -> Arc<MemTracker> {
        let (id, children) = (id.to_string(), Mutex::default());
        Arc::new(MemTracker { id, parent_id, limit, usage, peak: AtomicI64::new(0), children })
    }

    /// A consumer that tells what it holds with [`MemTracker::add`]. Dropping it takes it off the tree.
    pub fn child(&self, id: &str, limit: Option<u64>) -> Arc<MemTracker> {
        self.adopt(MemTracker::new(id, Some(self.id.clone()), limit, Usage::Told(AtomicI64::new(0))))
    }

    /// A consumer that is asked what it holds whenever someone looks.
    pub fn child_asked(
        &self,
        id: &str,
        limit: Option<u64>,
        ask: impl Fn() -> u64 + Send + Sync + 'static,
    ) -> Arc<MemTracker> {
        self.adopt(MemTracker::new(id, Some(self.id.clone()), limit, Usage::Asked(Box::new(ask))))
    }

    /// A group of consumers.
    pub fn child_sum(&self, id: &str, limit: Option<u64>) -> Arc<MemTracker> {
        self.adopt(MemTracker::new(id, Some(self.id.clone()), limit, Usage::Sum))
    }

    fn adopt(&self, child: Arc<MemTracker>) -> Arc<MemTracker> {
        let mut children = self.children();
        children.retain(|child| child.strong_count() > 0);
        children.push(Arc::downgrade(&child));
        child
    }

    /// Holds so many bytes more, or fewer. Only for trackers made by [`MemTracker::child`].
    pub fn add(&self, bytes: i64) {
        if let Usage::Told(told) = &self.usage {
            let now = told.fetch_add(bytes, Ordering::Relaxed) + bytes;
            self.peak.fetch_max(now, Ordering::Relaxed);
        }
    }

    /// Bytes held now.
    pub fn bytes(&self) -> i64 {
        self.usage().bytes
    }

    /// This tracker and all below, now.
    pub fn usage(&self) -> MemUsage {
        let living: Vec<_> = self.children().iter().filter_map(Weak::upgrade).collect();
        let children: Vec<MemUsage> = living.iter().map(|child| child.usage()).collect();
        let bytes = match &self.usage {
            Usage::Told(told) => told.load(Ordering::Relaxed),
            Usage::Asked(ask) => i64::try_from(ask()).unwrap_or(i64::MAX),
            Usage::Sum => children.iter().map(|child| child.bytes).sum(),
        };
        let peak_bytes = self.peak.fetch_max(bytes, Ordering::Relaxed).max(bytes);
        let (id, parent_id) = (self.id.clone(), self.parent_id.clone());
        MemUsage { id, parent_id, limit: self.limit, bytes, peak_bytes, children }
    }

    fn children(&self) -> MutexGuard<'_, Vec<Weak<MemTracker>>> {
        self.children.lock().expect("nothing panics while it holds the list")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_and_peaks() {
        let root = MemTracker::root(Some(1000));
        let told = root.child("told", None);
        let tablets = root.child_sum("tablets", None);
        let asked = tablets.child_asked("tablet-1", Some(50), || 7);
        told.add(100);
        told.add(-40);
        assert_eq!(root.bytes(), 67);
        assert_eq!(told.usage().peak_bytes, 100);
        drop(asked);
        let usage = root.usage();
        assert_eq!((usage.bytes, usage.peak_bytes), (60, 67));
        assert_eq!(usage.children[1].children, []);
    }
}
