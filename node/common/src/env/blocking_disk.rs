//! A real disk whose blocking calls release the worker thread of the tokio runtime.
//!
//! Work on tablets usually ends in microseconds because its data is cached. Moving it to another thread would cost
//! more than the work itself. Occasionally the work waits for the device. Only then do the other tasks of this
//! thread move to another thread. See [`Env::run_brief`](super::Env::run_brief).
//!
//! Appends do not release the thread: they end in the operating system's page cache, and they are frequent. Nor do
//! syncs that are short ([`short_syncs`](super::short_syncs)).

#![allow(clippy::disallowed_types, clippy::disallowed_methods, reason = "this file is the real world")]

use std::io;
use std::sync::Arc;
use std::time::Instant;

use engine::disk::{Disk, DiskFile, DiskSpace, EntryKind};
use tokio::runtime::{Handle, RuntimeFlavor};

use super::short_syncs::ShortSyncs;
use super::task_registry::{WaitMark, marked_work};

/// A disk whose blocking calls delay no other task.
pub(super) struct BlockingDisk<D>(pub D);

/// Runs `wait` without delaying other tasks, if the runtime has other threads to run them.
fn run_blocking<R>(wait: impl FnOnce() -> R) -> R {
    marked_work(WaitMark::Device, || match Handle::try_current().map(|runtime| runtime.runtime_flavor()) {
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(wait),
        _ => wait(),
    })
}

/// Syncs of all disks: what they share is the worker threads.
static SYNCS: ShortSyncs = ShortSyncs::new();

/// Runs a sync, in place if it is likely to be short.
fn run_sync(sync: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    let began = Instant::now();
    let running = SYNCS.begin();
    let result = match running.is_in_place {
        true => marked_work(WaitMark::Device, sync),
        false => run_blocking(sync),
    };
    SYNCS.record(began.elapsed());
    result
}

fn file(opened: io::Result<Arc<dyn DiskFile>>) -> io::Result<Arc<dyn DiskFile>> {
    opened.map(|file| Arc::new(BlockingFile(file)) as Arc<dyn DiskFile>)
}

impl<D: Disk> Disk for BlockingDisk<D> {
    fn create(&self, path: &str) -> io::Result<Arc<dyn DiskFile>> {
        file(run_blocking(|| self.0.create(path)))
    }

    fn open(&self, path: &str) -> io::Result<Arc<dyn DiskFile>> {
        file(run_blocking(|| self.0.open(path)))
    }

    fn open_read(&self, path: &str) -> io::Result<Arc<dyn DiskFile>> {
        file(run_blocking(|| self.0.open_read(path)))
    }

    fn entry_kind(&self, path: &str) -> io::Result<Option<EntryKind>> {
        run_blocking(|| self.0.entry_kind(path))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        run_blocking(|| self.0.rename(from, to))
    }

    fn remove(&self, path: &str) -> io::Result<()> {
        run_blocking(|| self.0.remove(path))
    }

    fn list(&self, dir: &str) -> io::Result<Vec<String>> {
        run_blocking(|| self.0.list(dir))
    }

    fn create_dir(&self, dir: &str) -> io::Result<()> {
        run_blocking(|| self.0.create_dir(dir))
    }

    fn sync_dir(&self, dir: &str) -> io::Result<()> {
        run_blocking(|| self.0.sync_dir(dir))
    }

    fn space(&self) -> io::Result<DiskSpace> {
        run_blocking(|| self.0.space())
    }

    fn lock(&self, path: &str) -> io::Result<Box<dyn Send + Sync>> {
        run_blocking(|| self.0.lock(path))
    }
}

struct BlockingFile(Arc<dyn DiskFile>);

impl DiskFile for BlockingFile {
    fn append(&self, bytes: &[u8]) -> io::Result<()> {
        self.0.append(bytes)
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        run_blocking(|| self.0.read_at(offset, out))
    }

    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }

    fn truncate(&self, len: u64) -> io::Result<()> {
        run_blocking(|| self.0.truncate(len))
    }

    fn sync(&self) -> io::Result<()> {
        run_sync(|| self.0.sync())
    }

    fn reserve(&self, bytes: u64) -> io::Result<()> {
        run_blocking(|| self.0.reserve(bytes))
    }

    fn will_read(&self, offset: u64, len: u64) {
        self.0.will_read(offset, len);
    }

    fn will_verify(&self) {
        self.0.will_verify();
    }

    fn begin_writing(&self, offset: u64, len: u64) {
        self.0.begin_writing(offset, len);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// The only worker thread waits for a message that only another task sends.
    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn other_tasks_run_while_one_waits_for_a_disk() {
        let (done_sender, wait) = mpsc::channel();
        let waiting = tokio::spawn(async move {
            // Spawned by this thread, so that the task is in this thread's queue.
            tokio::spawn(async move { done_sender.send("done") });
            run_blocking(|| wait.recv())
        });
        assert_eq!(waiting.await.expect("it ends"), Ok("done"));
    }

    #[tokio::test]
    async fn a_single_threaded_runtime_waits_in_place() {
        assert_eq!(run_blocking(|| "done"), "done");
    }
}
