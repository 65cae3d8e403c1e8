//! A real disk that steps aside while it waits.
//!
//! Work on tablets is mostly over in microseconds, because what it reads is cached; handing it to another thread would
//! cost more than it takes. Now and then it does wait for the device. Then, and only then, the other tasks of
//! this thread are given to another one. See [`Env::run_brief`](super::Env::run_brief).
//!
//! Appends do not step aside: they end in the page cache, and there are many of them.

#![allow(clippy::disallowed_methods, reason = "this file is the real world")]

use std::io;
use std::sync::Arc;

use engine::disk::{Disk, File, Space};
use tokio::runtime::{Handle, RuntimeFlavor};

/// A disk whose waits hold up nobody else.
pub struct AsideDisk<D>(pub D);

/// Runs `wait` where it holds up no other task, if there are other threads to run them.
fn aside<R>(wait: impl FnOnce() -> R) -> R {
    match Handle::try_current().map(|runtime| runtime.runtime_flavor()) {
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(wait),
        _ => wait(),
    }
}

fn file(opened: io::Result<Arc<dyn File>>) -> io::Result<Arc<dyn File>> {
    opened.map(|file| Arc::new(AsideFile(file)) as Arc<dyn File>)
}

impl<D: Disk> Disk for AsideDisk<D> {
    fn create(&self, path: &str) -> io::Result<Arc<dyn File>> {
        file(aside(|| self.0.create(path)))
    }

    fn open(&self, path: &str) -> io::Result<Arc<dyn File>> {
        file(aside(|| self.0.open(path)))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        aside(|| self.0.rename(from, to))
    }

    fn remove(&self, path: &str) -> io::Result<()> {
        aside(|| self.0.remove(path))
    }

    fn list(&self, dir: &str) -> io::Result<Vec<String>> {
        aside(|| self.0.list(dir))
    }

    fn create_dir(&self, dir: &str) -> io::Result<()> {
        aside(|| self.0.create_dir(dir))
    }

    fn sync_dir(&self, dir: &str) -> io::Result<()> {
        aside(|| self.0.sync_dir(dir))
    }

    fn space(&self) -> io::Result<Space> {
        aside(|| self.0.space())
    }

    fn lock(&self, path: &str) -> io::Result<Box<dyn Send + Sync>> {
        aside(|| self.0.lock(path))
    }
}

struct AsideFile(Arc<dyn File>);

impl File for AsideFile {
    fn append(&self, bytes: &[u8]) -> io::Result<()> {
        self.0.append(bytes)
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        aside(|| self.0.read_at(offset, out))
    }

    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }

    fn truncate(&self, len: u64) -> io::Result<()> {
        aside(|| self.0.truncate(len))
    }

    fn sync(&self) -> io::Result<()> {
        aside(|| self.0.sync())
    }

    fn reserve(&self, bytes: u64) -> io::Result<()> {
        aside(|| self.0.reserve(bytes))
    }

    fn will_read(&self, offset: u64, len: u64) {
        self.0.will_read(offset, len);
    }

    fn begin_writing(&self, offset: u64, len: u64) {
        self.0.begin_writing(offset, len);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// The one thread of the runtime waits for something that only another task does.
    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn other_tasks_run_on_while_a_disk_is_waited_for() {
        let (heard, wait) = mpsc::channel();
        let waiting = tokio::spawn(async move {
            // Spawned first by this very thread, so that it lies in its queue.
            tokio::spawn(async move { heard.send("done") });
            aside(|| wait.recv())
        });
        assert_eq!(waiting.await.expect("it ends"), Ok("done"));
    }

    #[tokio::test]
    async fn a_lone_thread_waits_itself() {
        assert_eq!(aside(|| "done"), "done");
    }
}
