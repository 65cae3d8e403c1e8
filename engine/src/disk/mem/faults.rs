//! Faults that apply to a kind of operation, or at random.

use rustix::io::Errno;

use super::MemDisk;
use super::armed_faults::{DiskOpKind, ROWS, WriteDamage};
use super::file_content::content;

impl MemDisk {
    /// Makes the `k`-th operation of a kind from now (the next is 1) fail with `errno`.
    pub fn fail_nth(&self, kind: DiskOpKind, k: u64, errno: i32) {
        let mut state = self.state();
        let at = state.armed.count(kind) + k.max(1);
        state.armed.failures.insert((kind, at), Errno::from_raw_os_error(errno));
    }

    /// Returns the number of operations of a kind.
    pub fn op_count_of(&self, kind: DiskOpKind) -> u64 {
        self.state().armed.count(kind)
    }

    /// Cuts the power within the `k`-th operation of a kind from now, as [`MemDisk::cut_power_at`] does.
    pub fn cut_power_at_nth(&self, kind: DiskOpKind, k: u64) {
        let mut state = self.state();
        let at = state.armed.count(kind) + k.max(1);
        state.armed.power_cut_at = Some((kind, at));
    }

    /// Makes `per_mille` of 1,000 operations of a kind fail with `errno` from now on; 0 ends that.
    pub fn fail_some(&self, kind: DiskOpKind, per_mille: u16, errno: i32) {
        let mut state = self.state();
        match per_mille {
            0 => drop(state.armed.rates.remove(&kind)),
            _ => drop(state.armed.rates.insert(kind, (per_mille, Errno::from_raw_os_error(errno)))),
        }
    }

    /// Damages the `k`-th append from now, or the first one after it to a file that holds rows, without an error. Data
    /// is lost that was reported as durable. Other files are spared, because nothing can restore a lost vote.
    pub fn damage_append(&self, k: u64, damage: WriteDamage) {
        let mut state = self.state();
        let at = state.armed.count(DiskOpKind::Append) + k.max(1);
        state.armed.damages.insert(at, damage);
    }

    /// Makes `count` random pages of random files that hold rows unreadable: each read of one fails. Returns the number
    /// of pages.
    pub fn lose_pages(&self, count: u64) -> u64 {
        let state = &mut *self.state();
        let mut lost = 0;
        state.rng.begin("pages", state.ops);
        for _ in 0..count {
            let Some(file) = state.names.random_file(ROWS, &mut state.rng) else { break };
            content(&file).lose_page(&mut state.rng);
            lost += 1;
        }
        lost
    }

    /// Flips a bit at `count` random places of random files that hold rows. Returns the number of bits flipped.
    pub fn flip_bits(&self, count: u64) -> u64 {
        let state = &mut *self.state();
        let mut flipped = 0;
        state.rng.begin("bits", state.ops);
        for _ in 0..count {
            let Some(file) = state.names.random_file(ROWS, &mut state.rng) else { break };
            let len = content(&file).len();
            let offset = state.rng.up_to(usize::try_from(len).unwrap_or(usize::MAX) - 1) as u64;
            flipped += u64::from(content(&file).flip_bit(offset).is_ok());
        }
        state.counts.bits_flipped += flipped;
        flipped
    }
}
