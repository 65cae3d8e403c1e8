//! The directory tree: the names now, the names a crash cannot take, and the changes between the two.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Arc, Mutex};

use rustix::io::Errno;

use super::super::parent;
use super::FaultCounts;
use super::content::Content;
use super::rng::SplitMix;

#[derive(Clone)]
pub(super) enum Node {
    Dir,
    File(Arc<Mutex<Content>>),
}

/// By path; the root is not listed.
type Tree = BTreeMap<String, Node>;

#[derive(Clone)]
enum Change {
    Add { path: String, node: Node },
    Remove { path: String },
    Rename { from: String, to: String },
}

#[derive(Default)]
pub(super) struct Names {
    live: Tree,
    durable: Tree,
    /// Changes that are in `live` and not in `durable`, oldest first.
    journal: Vec<Change>,
}

impl Change {
    /// The directories that this changes.
    fn dirs(&self) -> [&str; 2] {
        match self {
            Change::Add { path, .. } | Change::Remove { path } => [parent(path), parent(path)],
            Change::Rename { from, to } => [parent(from), parent(to)],
        }
    }

    fn apply(self, tree: &mut Tree) {
        match self {
            Change::Add { path, node } => {
                tree.insert(path, node);
            }
            Change::Remove { path } => {
                // What was in a directory goes with it, though its own removal was never made durable.
                if let Some(Node::Dir) = tree.remove(&path) {
                    let below = format!("{path}/");
                    tree.retain(|path, _| !path.starts_with(&below));
                }
            }
            Change::Rename { from, to } => {
                if let Some(node) = tree.remove(&from) {
                    tree.insert(to, node);
                }
            }
        }
    }
}

impl Names {
    /// Bytes in all files that have a name.
    pub fn bytes(&self) -> u64 {
        let file_len = |node: &Node| match node {
            Node::Dir => 0,
            Node::File(content) => super::content(content).len(),
        };
        self.live.values().map(file_len).sum()
    }

    /// Some file in this directory or below that is not empty.
    pub fn random_file(&self, dir: &str, rng: &mut SplitMix) -> Option<Arc<Mutex<Content>>> {
        let content = |node: &Node| match node {
            Node::File(content) if super::content(content).len() > 0 => Some(content.clone()),
            _ => None,
        };
        let below = self.live.iter().filter(|(path, _)| path.starts_with(dir));
        let mut files: Vec<_> = below.filter_map(|(_, node)| content(node)).collect();
        if files.is_empty() { None } else { Some(files.swap_remove(rng.up_to(files.len() - 1))) }
    }

    /// Whether a file has its name below a directory.
    pub fn is_in(&self, dir: &str, file: &Arc<Mutex<Content>>) -> bool {
        let is_it = |node: &Node| matches!(node, Node::File(content) if Arc::ptr_eq(content, file));
        self.live.iter().any(|(path, node)| path.starts_with(dir) && is_it(node))
    }

    pub fn file(&self, path: &str) -> io::Result<Arc<Mutex<Content>>> {
        if path.is_empty() {
            return Err(Errno::INVAL.into());
        }
        match self.node(path)? {
            Some(Node::File(content)) => Ok(content.clone()),
            Some(Node::Dir) => Err(Errno::ISDIR.into()),
            None => Err(Errno::NOENT.into()),
        }
    }

    pub fn add_file(&mut self, path: &str, content: Arc<Mutex<Content>>) -> io::Result<()> {
        if path.is_empty() {
            return Err(Errno::INVAL.into());
        }
        if self.node(path)?.is_some() {
            return Err(Errno::EXIST.into());
        }
        self.change(Change::Add { path: path.to_string(), node: Node::File(content) });
        Ok(())
    }

    pub fn add_dirs(&mut self, dir: &str) -> io::Result<()> {
        let ends = dir.match_indices('/').map(|(at, _)| at).chain([dir.len()]);
        for end in ends {
            let path = &dir[..end];
            match self.node(path)? {
                Some(Node::Dir) => {}
                Some(Node::File(_)) if end < dir.len() => return Err(Errno::NOTDIR.into()),
                Some(Node::File(_)) => return Err(Errno::EXIST.into()),
                None => self.change(Change::Add { path: path.to_string(), node: Node::Dir }),
            }
        }
        Ok(())
    }

    /// Gives the file that lost its name to the renamed one.
    pub fn rename(&mut self, from: &str, to: &str) -> io::Result<Option<Arc<Mutex<Content>>>> {
        if from.is_empty() || to.is_empty() {
            return Err(Errno::INVAL.into());
        }
        self.file(from)?;
        let replaced = match self.node(to)? {
            // As Linux has it: onto a directory that it lies in.
            Some(Node::Dir) if from.strip_prefix(to).is_some_and(|below| below.starts_with('/')) => {
                return Err(Errno::NOTEMPTY.into());
            }
            Some(Node::Dir) => return Err(Errno::ISDIR.into()),
            Some(Node::File(content)) => Some(content.clone()),
            None => None,
        };
        if from == to {
            return Ok(None);
        }
        self.change(Change::Rename { from: from.to_string(), to: to.to_string() });
        Ok(replaced)
    }

    pub fn remove(&mut self, path: &str) -> io::Result<Node> {
        if path.is_empty() {
            return Err(Errno::INVAL.into());
        }
        let node = self.node(path)?.cloned().ok_or(Errno::NOENT)?;
        if matches!(node, Node::Dir) && !self.list(path)?.is_empty() {
            return Err(Errno::NOTEMPTY.into());
        }
        self.change(Change::Remove { path: path.to_string() });
        Ok(node)
    }

    pub fn list(&self, dir: &str) -> io::Result<Vec<String>> {
        self.check_dir(dir)?;
        let prefix = if dir.is_empty() { String::new() } else { format!("{dir}/") };
        let below = self.live.range(prefix.clone()..).take_while(|(path, _)| path.starts_with(&prefix));
        let names = below.map(|(path, _)| &path[prefix.len()..]).filter(|name| !name.contains('/'));
        let mut names: Vec<String> = names.map(str::to_string).collect();
        names.sort_unstable();
        Ok(names)
    }

    /// Makes the changes in `dir` durable, and with a rename across directories what came before it there.
    pub fn sync(&mut self, dir: &str) -> io::Result<()> {
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
    pub fn crash(&mut self, rng: &mut SplitMix, counts: &mut FaultCounts) {
        // A file system with one journal loses its end; one without may lose the end of each directory.
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
        for node in self.durable.values() {
            if let Node::File(file) = node {
                super::content(file).crash(rng, counts);
            }
        }
        self.live = self.durable.clone();
    }

    /// Drops durable names whose directory's own name was lost.
    fn drop_orphans(&mut self) {
        let mut kept = Tree::new();
        // Directories sort before what is in them.
        for (path, node) in std::mem::take(&mut self.durable) {
            let dir = parent(&path);
            if dir.is_empty() || matches!(kept.get(dir), Some(Node::Dir)) {
                kept.insert(path, node);
            }
        }
        self.durable = kept;
    }

    fn change(&mut self, change: Change) {
        change.clone().apply(&mut self.live);
        self.journal.push(change);
    }

    fn check_dir(&self, dir: &str) -> io::Result<()> {
        match self.node(dir)? {
            Some(Node::Dir) => Ok(()),
            Some(Node::File(_)) => Err(Errno::NOTDIR.into()),
            None => Err(Errno::NOENT.into()),
        }
    }

    /// What has a name, if anything; an error if the way there is missing or leads through a file.
    fn node(&self, path: &str) -> io::Result<Option<&Node>> {
        if path.is_empty() {
            return Ok(Some(&Node::Dir));
        }
        for (at, _) in path.match_indices('/') {
            match self.live.get(&path[..at]) {
                Some(Node::Dir) => {}
                Some(Node::File(_)) => return Err(Errno::NOTDIR.into()),
                None => return Err(Errno::NOENT.into()),
            }
        }
        Ok(self.live.get(path))
    }
}
