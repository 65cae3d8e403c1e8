//! Writes of a task: sessions of every mode, which several tasks may share, and buffered rows that are given
//! up.

use std::collections::BTreeSet;
use std::time::Duration;

use engine::schema::row_ops::ClientCell;
use futures_util::future::join_all;
use nyala_client::{Error, FlushMode, Session, SessionConfig};
use sim_plan::client_ops::WriteKind;

use super::cluster::Intent;
use super::codec::KINDS;
use super::limits::{OP_TIMEOUT, WORKERS};
use super::rows::Cells;
use super::tablets::KEYS;
use super::worker::Worker;
use crate::workload::row_encoding;

/// Most rows of a write.
const ROWS: u64 = 12;
/// Percentage of writes whose session several tasks share, and most such tasks.
const SHARED_PERCENT: u64 = 30;
const TASKS_MAX: u64 = 4;
/// Percentage of rows after which a task of a shared session flushes.
const FLUSH_PERCENT: u64 = 25;

/// A row operation of a write by its number, and whether its task flushes after it.
type Applied = (usize, Intent, bool);

impl Worker {
    /// Writes rows, and checks the results of each of them.
    pub(super) async fn write(&mut self) {
        let op = self.begin();
        let rows = self.draw_rows(op);
        let config = self.draw_session();
        let session = self.client.session(config);
        let errors = self.write_by(&session, &rows).await;
        self.conclude(op, &rows, &errors);
    }

    /// Draws the settings of a session.
    fn draw_session(&mut self) -> SessionConfig {
        let modes = [FlushMode::AutoSync, FlushMode::AutoBackground, FlushMode::Manual];
        let mut config = SessionConfig::new(self.random.pick(&modes));
        config.timeout = OP_TIMEOUT;
        config.flush_interval = Duration::from_millis(self.random.between(1, 50));
        if config.mode == FlushMode::AutoBackground {
            config.buffer_bytes = self.random.pick(&[60, 200, 2_000, 1 << 20]);
        }
        config
    }

    /// Applies rows and flushes them, in one task or in several at once, each of which waits for all rows of
    /// the session. Returns the errors of rows by their numbers.
    async fn write_by(&mut self, session: &Session, rows: &[(usize, Intent)]) -> Vec<(usize, Error)> {
        let shared = self.random.percent(SHARED_PERCENT);
        let tasks = if shared { self.random.between(2, TASKS_MAX) as usize } else { 1 };
        let mut parts: Vec<Vec<Applied>> = vec![Vec::new(); tasks];
        for (at, (number, intent)) in rows.iter().enumerate() {
            let flushes = shared && self.random.percent(FLUSH_PERCENT);
            parts[at % tasks].push((*number, intent.clone(), flushes));
        }
        if shared {
            self.cluster.lock().note(format!("{tasks} tasks share a session of {} rows", rows.len()));
        }
        let this = &*self;
        let parts = parts.iter().map(|part| this.write_part(session.clone(), part));
        join_all(parts).await.concat()
    }

    /// Applies the rows of one task, and flushes. A flush also returns errors of rows of other tasks.
    async fn write_part(&self, session: Session, rows: &[Applied]) -> Vec<(usize, Error)> {
        let mut errors = Vec::new();
        for (number, intent, flushes) in rows {
            errors.extend(self.apply(&session, *number, intent).await.err().map(|error| (*number, error)));
            if *flushes {
                errors.extend(flush(&session).await);
            }
        }
        errors.extend(flush(&session).await);
        errors
    }

    fn conclude(&mut self, op: usize, rows: &[(usize, Intent)], errors: &[(usize, Error)]) {
        let result = |(number, _): &(usize, Intent)| {
            (*number, errors.iter().find(|(tag, _)| tag == number).map(|(_, error)| error.clone()))
        };
        let results: Vec<_> = rows.iter().map(result).collect();
        for (number, error) in &results {
            if error.is_some() {
                self.doubted.insert(self.cluster.lock().intents[*number].key);
            }
        }
        self.cluster.lock().conclude_write(op, &results, self.now());
    }

    /// Gives up a buffered row: its session is dropped, or discards it and writes others. No server expects
    /// the row, so each reports a call that has it.
    pub(super) async fn drop_rows(&mut self) {
        let op = self.begin();
        let key = self.random.below(KEYS as u64) as i64;
        let kind = WriteKind::Upsert;
        let row =
            Intent { kind, cells: Cells { number: Some(Some(-1)), text: None }, ..self.draw_row(op, key) };
        let mut config = SessionConfig::new(FlushMode::AutoBackground);
        (config.timeout, config.flush_interval) =
            (OP_TIMEOUT, Duration::from_millis(self.random.between(1, 50)));
        let discards = self.random.percent(50);
        let rows = if discards { self.draw_rows(op) } else { Vec::new() };
        let session = self.client.session(config);
        // A row that could not be located is not buffered; one without a tablet fails.
        let _ = self.apply(&session, 0, &row).await;
        if !discards {
            drop(session);
            return self.conclude(op, &[], &[]);
        }
        let given_up = session.discard().await.len();
        if session.buffered_bytes() > 0 {
            self.cluster.lock().report("a session has bytes of rows that it has discarded".to_string());
        }
        self.cluster.lock().note(format!("a session discards its rows, {given_up} of them failed"));
        let errors = self.write_by(&session, &rows).await;
        self.conclude(op, &rows, &errors);
    }

    /// Draws row operations of one write: no key twice.
    fn draw_rows(&mut self, op: usize) -> Vec<(usize, Intent)> {
        let mut keys = BTreeSet::new();
        let count = self.random.between(1, ROWS);
        let mut drawn = Vec::new();
        for _ in 0..count {
            let key = self.random.below(KEYS as u64 / WORKERS) as i64 * WORKERS as i64 + self.number as i64;
            if !keys.insert(key) {
                continue;
            }
            let intent = self.draw_row(op, key);
            let mut cluster = self.cluster.lock();
            cluster.intents.push(intent.clone());
            drawn.push((cluster.intents.len() - 1, intent));
        }
        drawn
    }

    fn draw_row(&mut self, op: usize, key: i64) -> Intent {
        let mut kind = self.random.pick(&KINDS);
        let deletes = matches!(kind, WriteKind::Delete | WriteKind::DeleteIgnore);
        if deletes && self.doubted.contains(&key) {
            kind = WriteKind::Upsert;
        }
        self.written += 1;
        let number = self.written * WORKERS as i64 + self.number as i64;
        let text = match self.random.below(4) {
            0 => None,
            1 => Some(None),
            _ => Some(Some("x".repeat(self.random.below(40) as usize))),
        };
        let is_delete = matches!(kind, WriteKind::Delete | WriteKind::DeleteIgnore);
        let cells = if is_delete { Cells::default() } else { Cells { number: Some(Some(number)), text } };
        Intent { op, kind, key, cells, results: Vec::new() }
    }

    async fn apply(&self, session: &Session, number: usize, intent: &Intent) -> nyala_client::Result<()> {
        let (key, value) = (intent.key.to_le_bytes(), intent.cells.number.flatten().map(i64::to_le_bytes));
        let text = intent.cells.text.as_ref();
        let cells = [
            ClientCell::Value(&key),
            value.as_ref().map_or(ClientCell::Unset, |value| ClientCell::Value(value)),
            text.map_or(ClientCell::Unset, |text| {
                text.as_ref().map_or(ClientCell::Null, |text| ClientCell::Value(text.as_bytes()))
            }),
        ];
        session.apply(&self.table, row_encoding::kind(intent.kind), &cells, number as u64).await
    }
}

/// Flushes a session; returns the errors of rows by their numbers.
async fn flush(session: &Session) -> Vec<(usize, Error)> {
    let failures = session.flush().await.into_iter();
    failures.map(|failure| (failure.tag as usize, failure.error)).collect()
}
