//! The directory tree: live names, durable names, and the changes between the two.

use crate::sync::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;

use rustix::io::Errno;

use super::super::parent;
use super::fault_counts::FaultCounts;
use super::file_content::{self, FileContent, UnsyncedKept};
use super::split_mix::SplitMix64;

#[derive(Clone)]
pub(super) enum NamespaceEntry {
    Dir,
    File(Arc<Mutex<FileContent>>),
}

/// Entries by path; the root is not listed.
type Tree = BTreeMap<String, NamespaceEntry>;

#[derive(Clone)]
enum NameChange {
    Add { path: String, node: NamespaceEntry },
    Remove { path: String },
    Rename { from: String, to: String },
}

#[derive(Default)]
pub(super) struct Namespace {
    live: Tree,
    durable: Tree,
    /// Changes that are in `live` and not in `durable`, oldest first.
    journal: Vec<NameChange>,
}

impl NameChange {
    /// Returns the directories that the change modifies.
    fn dirs(&self) -> [&str; 2] {
        match self {
            NameChange::Add { path, .. } | NameChange::Remove { path } => [parent(path), parent(path)],
            NameChange::Rename { from, to } => [parent(from), parent(to)],
        }
    }

    fn apply(self, tree: &mut Tree) {
        match self {
            NameChange::Add { path, node } => {
                tree.insert(path, node);
            }
            NameChange::Remove { path } => {
                // Entries of a removed directory go with it, though their own removal was never made durable.
                if let Some(NamespaceEntry::Dir) = tree.remove(&path) {
                    let below = format!("{path}/");
                    tree.retain(|path, _| !path.starts_with(&below));
                }
            }
            NameChange::Rename { from, to } => {
                if let Some(node) = tree.remove(&from) {
                    tree.insert(to, node);
                }
            }
        }
    }
}

impl Namespace {
    /// Returns copies of all live files; every change is durable.
    pub(super) fn image(&self) -> Namespace {
        let copy = |(path, node): (&String, &NamespaceEntry)| match node {
            NamespaceEntry::Dir => (path.clone(), NamespaceEntry::Dir),
            NamespaceEntry::File(content) => {
                let content = file_content::content(content).image();
                (path.clone(), NamespaceEntry::File(Arc::new(Mutex::new(content))))
            }
        };
        let live: Tree = self.live.iter().map(copy).collect();
        Namespace { durable: live.clone(), live, journal: Vec::new() }
    }

    /// Number of bytes in all files that have a name.
    pub(super) fn bytes(&self) -> u64 {
        let file_len = |node: &NamespaceEntry| match node {
            NamespaceEntry::Dir => 0,
            NamespaceEntry::File(content) => file_content::content(content).len(),
        };
        self.live.values().map(file_len).sum()
    }

    /// Returns a random file in this directory or below that is not empty.
    pub(super) fn random_file(&self, dir: &str, rng: &mut SplitMix64) -> Option<Arc<Mutex<FileContent>>> {
        let content = |node: &NamespaceEntry| match node {
            NamespaceEntry::File(content) if file_content::content(content).len() > 0 => {
                Some(content.clone())
            }
            _ => None,
        };
        let below = self.live.iter().filter(|(path, _)| path.starts_with(dir));
        let mut files: Vec<_> = below.filter_map(|(_, node)| content(node)).collect();
        if files.is_empty() { None } else { Some(files.swap_remove(rng.up_to(files.len() - 1))) }
    }

    /// Returns true if the file has a name below the directory.
    pub(super) fn is_in(&self, dir: &str, file: &Arc<Mutex<FileContent>>) -> bool {
        let is_it = |node: &NamespaceEntry| matches!(node, NamespaceEntry::File(content) if Arc::ptr_eq(content, file));
        self.live.iter().any(|(path, node)| path.starts_with(dir) && is_it(node))
    }

    pub(super) fn file(&self, path: &str) -> io::Result<Arc<Mutex<FileContent>>> {
        if path.is_empty() {
            return Err(Errno::INVAL.into());
        }
        match self.node(path)? {
            Some(NamespaceEntry::File(content)) => Ok(content.clone()),
            Some(NamespaceEntry::Dir) => Err(Errno::ISDIR.into()),
            None => Err(Errno::NOENT.into()),
        }
    }

    pub(super) fn add_file(&mut self, path: &str, content: Arc<Mutex<FileContent>>) -> io::Result<()> {
        if path.is_empty() {
            return Err(Errno::INVAL.into());
        }
        if self.node(path)?.is_some() {
            return Err(Errno::EXIST.into());
        }
        self.change(NameChange::Add { path: path.to_string(), node: NamespaceEntry::File(content) });
        Ok(())
    }

    pub(super) fn add_dirs(&mut self, dir: &str) -> io::Result<()> {
        let ends = dir.match_indices('/').map(|(at, _)| at).chain([dir.len()]);
        for end in ends {
            let path = &dir[..end];
            match self.node(path)? {
                Some(NamespaceEntry::Dir) => {}
                Some(NamespaceEntry::File(_)) if end < dir.len() => return Err(Errno::NOTDIR.into()),
                Some(NamespaceEntry::File(_)) => return Err(Errno::EXIST.into()),
                None => self.change(NameChange::Add { path: path.to_string(), node: NamespaceEntry::Dir }),
            }
        }
        Ok(())
    }

    /// Renames a file and returns the file that the renamed one replaced.
    pub(super) fn rename(&mut self, from: &str, to: &str) -> io::Result<Option<Arc<Mutex<FileContent>>>> {
        if from.is_empty() || to.is_empty() {
            return Err(Errno::INVAL.into());
        }
        self.file(from)?;
        let replaced = match self.node(to)? {
            // As on Linux: onto a directory that contains the file.
            Some(NamespaceEntry::Dir)
                if from.strip_prefix(to).is_some_and(|below| below.starts_with('/')) =>
            {
                return Err(Errno::NOTEMPTY.into());
            }
            Some(NamespaceEntry::Dir) => return Err(Errno::ISDIR.into()),
            Some(NamespaceEntry::File(content)) => Some(content.clone()),
            None => None,
        };
        if from == to {
            return Ok(None);
        }
        self.change(NameChange::Rename { from: from.to_string(), to: to.to_string() });
        Ok(replaced)
    }

    pub(super) fn remove(&mut self, path: &str) -> io::Result<NamespaceEntry> {
        if path.is_empty() {
            return Err(Errno::INVAL.into());
        }
        let node = self.node(path)?.cloned().ok_or(Errno::NOENT)?;
        if matches!(node, NamespaceEntry::Dir) && !self.list(path)?.is_empty() {
            return Err(Errno::NOTEMPTY.into());
        }
        self.change(NameChange::Remove { path: path.to_string() });
        Ok(node)
    }

    pub(super) fn list(&self, dir: &str) -> io::Result<Vec<String>> {
        self.check_dir(dir)?;
        let prefix = if dir.is_empty() { String::new() } else { format!("{dir}/") };
        let below = self.live.range(prefix.clone()..).take_while(|(path, _)| path.starts_with(&prefix));
        let names = below.map(|(path, _)| &path[prefix.len()..]).filter(|name| !name.contains('/'));
        let mut names: Vec<String> = names.map(str::to_string).collect();
        names.sort_unstable();
        Ok(names)
    }

    /// Makes the changes in `dir` durable. A rename across directories also makes the earlier changes of the other
    /// directory durable.
    pub(super) fn sync(&mut self, dir: &str) -> io::Result<()> {
        self.check_dir(dir)?;
        let mut dirs = BTreeSet::from([dir.to_string()]);
        let mut chosen = vec![false; self.journal.len()];
        for (change, chosen) in self.journal.iter().zip(&mut chosen).rev() {
            if change.dirs().iter().any(|dir| dirs.contains(*dir)) {
                *chosen = true;
                dirs.extend(change.dirs().map(str::to_string));
            }
        }
        let journal = std::mem::take(&mut self.journal);
        for (change, chosen) in journal.into_iter().zip(chosen) {
            if chosen { change.apply(&mut self.durable) } else { self.journal.push(change) }
        }
        Ok(())
    }

    /// Leaves one of the trees that a power failure may leave, its files crashed too.
    pub(super) fn crash(&mut self, kept: UnsyncedKept, rng: &mut SplitMix64, counts: &mut FaultCounts) {
        rng.begin("", counts.crashes);
        // A file system with one journal loses the end of it; one without may lose the end of each directory.
        let one_journal = rng.coin();
        let lost_from = rng.up_to(self.journal.len());
        let mut cut = BTreeSet::new();
        for (at, change) in std::mem::take(&mut self.journal).into_iter().enumerate() {
            let lost = if one_journal {
                at >= lost_from
            } else {
                change.dirs().iter().any(|dir| cut.contains(*dir)) || rng.up_to(3) == 0
            };
            if lost {
                counts.names_lost += 1;
                cut.extend(change.dirs().map(str::to_string));
            } else {
                change.apply(&mut self.durable);
            }
        }
        self.drop_orphans();
        for (path, node) in &self.durable {
            if let NamespaceEntry::File(file) = node {
                rng.begin(path, counts.crashes);
                file_content::content(file).crash(kept, rng, counts);
            }
        }
        self.live = self.durable.clone();
    }

    /// Drops durable names whose directory's own name was lost.
    fn drop_orphans(&mut self) {
        let mut retained = Tree::new();
        // Directories sort before what is in them.
        for (path, node) in std::mem::take(&mut self.durable) {
            let dir = parent(&path);
            if dir.is_empty() || matches!(retained.get(dir), Some(NamespaceEntry::Dir)) {
                retained.insert(path, node);
            }
        }
        self.durable = retained;
    }

    fn change(&mut self, change: NameChange) {
        change.clone().apply(&mut self.live);
        self.journal.push(change);
    }

    fn check_dir(&self, dir: &str) -> io::Result<()> {
        match self.node(dir)? {
            Some(NamespaceEntry::Dir) => Ok(()),
            Some(NamespaceEntry::File(_)) => Err(Errno::NOTDIR.into()),
            None => Err(Errno::NOENT.into()),
        }
    }

    /// Returns the entry of a name, if there is one. Fails if a parent is missing or is a file.
    pub(super) fn node(&self, path: &str) -> io::Result<Option<&NamespaceEntry>> {
        if path.is_empty() {
            return Ok(Some(&NamespaceEntry::Dir));
        }
        for (at, _) in path.match_indices('/') {
            match self.live.get(&path[..at]) {
                Some(NamespaceEntry::Dir) => {}
                Some(NamespaceEntry::File(_)) => return Err(Errno::NOTDIR.into()),
                None => return Err(Errno::NOENT.into()),
            }
        }
        Ok(self.live.get(path))
    }
}
