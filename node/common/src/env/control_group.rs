//! Memory limit of this process's control group, such as systemd's `MemoryMax=` or a container's limit.
//!
//! ```text
//!   /proc/self/cgroup ─► version 2: 0::/a/b         ─► /sys/fs/cgroup/a/b/memory.max, …/a/memory.max, …
//!                     └► version 1: 5:memory:/a/b   ─► /sys/fs/cgroup/memory/a/b/memory.limit_in_bytes, …
//! ```
//!
//! - A group's limit applies to the groups below it too, so the smallest one up the path counts.
//! - In a container the path may be one of the host that is not mounted there: then only the mounted groups count.

#![allow(clippy::disallowed_methods, reason = "this file is the real world")]

use std::path::{Component, Path, PathBuf};

/// Hierarchy of control groups.
struct Hierarchy {
    /// Controller by which `/proc/self/cgroup` names it; version 2 has one hierarchy without a name.
    controller: &'static str,
    mount: &'static str,
    /// File with a group's limit.
    limit: &'static str,
}

const HIERARCHIES: [Hierarchy; 2] = [
    Hierarchy { controller: "", mount: "sys/fs/cgroup", limit: "memory.max" },
    Hierarchy { controller: "memory", mount: "sys/fs/cgroup/memory", limit: "memory.limit_in_bytes" },
];

/// Returns the memory limit of the process in bytes, if a control group has one. `root` is `/`, or a tree like it.
pub(super) fn memory_limit(root: &Path) -> Option<u64> {
    let groups = std::fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let limit = |hierarchy: &Hierarchy| {
        let group = group_of(&groups, hierarchy.controller);
        smallest_limit(&root.join(hierarchy.mount), group, hierarchy.limit)
    };
    HIERARCHIES.iter().filter_map(limit).min()
}

/// Returns the path of the process's group in the hierarchy of a controller; the root group if it is not listed.
fn group_of<'a>(groups: &'a str, controller: &str) -> &'a str {
    let path = |line: &'a str| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, path) = (parts.next()?, parts.next()?);
        controllers.split(',').any(|name| name == controller).then_some(path)
    };
    groups.lines().find_map(path).unwrap_or("/")
}

/// Returns the smallest limit of a group and those above it. A group without a limit has a word instead of a number.
fn smallest_limit(mount: &Path, group: &str, file: &str) -> Option<u64> {
    let names = Path::new(group).components().filter(|part| matches!(part, Component::Normal(_)));
    let group = mount.join(names.collect::<PathBuf>());
    let groups = group.ancestors().take_while(|group| group.starts_with(mount));
    groups.filter_map(|group| std::fs::read_to_string(group.join(file)).ok()?.trim().parse().ok()).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the limit in a tree with these files.
    fn limit_in(files: &[(&str, &str)]) -> Option<u64> {
        let root = tempfile::tempdir().expect("a directory");
        for (path, text) in files {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().expect("a folder")).expect("a fresh tree");
            std::fs::write(path, text).expect("a fresh tree");
        }
        memory_limit(root.path())
    }

    const UNIT: (&str, &str) = ("proc/self/cgroup", "0::/system.slice/nyala-tablet-server.service\n");

    #[test]
    fn the_smallest_limit_up_the_path_counts() {
        let unit = |limit| ("sys/fs/cgroup/system.slice/nyala-tablet-server.service/memory.max", limit);
        let slice = |limit| ("sys/fs/cgroup/system.slice/memory.max", limit);
        assert_eq!(limit_in(&[UNIT, unit("2147483648\n"), slice("max\n")]), Some(2 << 30));
        assert_eq!(limit_in(&[UNIT, unit("2147483648\n"), slice("1073741824\n")]), Some(1 << 30));
        assert_eq!(limit_in(&[UNIT, unit("max\n"), slice("max\n")]), None);
        let other = ("sys/fs/cgroup/system.slice/other.service/memory.max", "4096\n");
        assert_eq!(limit_in(&[UNIT, other]), None, "the limit of another unit");
    }

    #[test]
    fn a_containers_own_root_counts() {
        let root = ("sys/fs/cgroup/memory.max", "3000000000\n");
        assert_eq!(limit_in(&[("proc/self/cgroup", "0::/\n"), root]), Some(3_000_000_000));
        assert_eq!(limit_in(&[("proc/self/cgroup", "0::/../outside\n"), root]), Some(3_000_000_000));
        assert_eq!(limit_in(&[root]), Some(3_000_000_000), "there is no list of groups");
        assert_eq!(limit_in(&[]), None);
    }

    #[test]
    fn version_1_has_a_hierarchy_for_memory() {
        let groups =
            ("proc/self/cgroup", "11:cpu,cpuacct:/a\n5:memory,hugetlb:/docker/b\n1:name=systemd:/a\n0::/a\n");
        let group = |limit| ("sys/fs/cgroup/memory/docker/b/memory.limit_in_bytes", limit);
        let root = |limit| ("sys/fs/cgroup/memory/memory.limit_in_bytes", limit);
        let unlimited = "9223372036854771712\n";
        assert_eq!(limit_in(&[groups, group("8192\n"), root(unlimited)]), Some(8192));
        // In a container the host's path is not there, and the root is the container's group.
        assert_eq!(limit_in(&[groups, root("4096\n")]), Some(4096));
        let foreign = ("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "1\n");
        assert_eq!(limit_in(&[groups, foreign, root("4096\n")]), Some(4096), "another controller's group");
    }
}
