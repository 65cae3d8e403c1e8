//! Format levels that this server's program supports, and the end of a server whose cluster has another one.
//!
//! ```text
//!   master's catalog ── level ──▶ heartbeat reply ──▶ supported? ── yes ──▶ `instance` of all directories
//!                        own replica of the catalog ──▶    └──────── no ──▶ the process ends, exit code 8
//! ```

use engine::error::{Error, Result};
use engine::format_level::{FormatLevel, LevelRange};
use engine::sync::Mutex;
use nyala_common::env::Env;
use tokio::sync::Notify;

use crate::dirs::{PROGRAM, ServerDirs};

/// Levels of a program, and its refusal to serve a cluster of another level.
#[derive(Debug)]
pub struct FormatSupport {
    levels: LevelRange,
    fault: Mutex<Option<Error>>,
    lost: Notify,
}

impl FormatSupport {
    pub fn new(levels: LevelRange) -> FormatSupport {
        FormatSupport { levels, fault: Mutex::default(), lost: Notify::new() }
    }

    pub fn levels(&self) -> LevelRange {
        self.levels
    }

    /// Stores the cluster's level in the directories. An unsupported one ends the server and is the error.
    pub(crate) async fn take_level(&self, env: &Env, dirs: &ServerDirs, level: FormatLevel) -> Result<()> {
        if let Err(error) = self.levels.check(level, PROGRAM) {
            let error = error.context("the cluster");
            self.refuse(error.clone());
            return Err(error);
        }
        if level <= dirs.level() {
            return Ok(());
        }
        env.observer.mark("formats: level raised");
        env.run(|| dirs.raise_level(level)).await
    }

    /// Records that this program cannot serve the cluster.
    pub(crate) fn refuse(&self, error: Error) {
        self.fault.lock().get_or_insert(error);
        self.lost.notify_one();
    }

    /// Returns the reason that this program cannot serve the cluster, if there is one.
    pub fn fault(&self) -> Option<Error> {
        self.fault.lock().clone()
    }

    /// Waits until the program cannot serve the cluster; returns the reason.
    pub async fn lost(&self) -> Error {
        self.lost.notified().await;
        self.fault().unwrap_or_else(|| Error::unsupported("the cluster's format level is not supported"))
    }
}
