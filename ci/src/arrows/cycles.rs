//! Import cycles among the files of a crate; any cycle is a finding.
//!
//! ```text
//!   files ─► items and `use` lines of each ─► arrow file → file for every path ─► strongly connected sets of files
//! ```
//!
//! - An arrow is a `use` of another file's item, or a path to it, by code of this file. A re-export is followed: the
//!   arrow ends at the file that defines the item.
//! - `mod x;` is no arrow. Nor is a re-export (`pub use x::Y`) of a file that has child modules: a parent shows its
//!   children's items without importing them. A `use` that is private counts everywhere.
//! - Tests and `#[cfg(test)]` items are not read.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};

use super::paths;
use crate::tidy::rust::is_cfg_test;

/// Re-exports followed for one path before it is given up.
const REEXPORTS_MAX: usize = 8;

/// A file of a crate, by its module's path.
struct Source {
    file: String,
    /// Names of items defined here.
    items: BTreeSet<String>,
    /// Names brought in by `use`, with the path of each.
    imports: BTreeMap<String, Vec<String>>,
    /// Modules whose names are all brought in.
    globs: Vec<Vec<String>>,
    /// Every path that counts as an arrow if another file defines its target.
    named: Vec<Vec<String>>,
}

/// Files that import each other, sorted, and the arrows among them.
pub(super) struct Cycle {
    pub files: Vec<String>,
    /// One line for each arrow: `a.rs → b.rs: crate::b::B, crate::b::f`.
    pub arrows: Vec<String>,
}

/// Returns the cycles among `files`, which are paths under the crate's sources with their text.
pub(super) fn cycles(files: &[(String, String)]) -> Result<Vec<Cycle>> {
    let mut sources = BTreeMap::new();
    let has_library = files.iter().any(|(file, _)| file == "lib.rs");
    for (file, text) in files {
        // A program beside a library is a crate of its own, which the library cannot import.
        if file == "main.rs" && has_library {
            continue;
        }
        let parsed = syn::parse_file(text).with_context(|| format!("parsing {file}"))?;
        sources.insert(paths::module_of(file), source(file, &parsed));
    }
    let arrows: Arrows<'_> = sources
        .iter()
        .map(|(module, source)| (source.file.as_str(), arrows(&sources, module, source)))
        .collect();
    let sets = connected(&arrows).into_iter();
    Ok(sets.map(|files| Cycle { arrows: among(&arrows, &files), files }).collect())
}

/// The files that each file imports, with the paths that name them.
type Arrows<'a> = BTreeMap<&'a str, BTreeMap<&'a str, BTreeSet<String>>>;

/// Returns one line for each arrow among `files`.
fn among(arrows: &Arrows<'_>, files: &[String]) -> Vec<String> {
    let has = |file: &str| files.iter().any(|other| other == file);
    let mut lines = Vec::new();
    for (from, targets) in arrows.iter().filter(|(from, _)| has(from)) {
        for (to, paths) in targets.iter().filter(|(to, _)| has(to)) {
            let paths: Vec<&str> = paths.iter().map(String::as_str).collect();
            lines.push(format!("{from} → {to}: {}", paths.join(", ")));
        }
    }
    lines
}

fn source(file: &str, parsed: &syn::File) -> Source {
    let is_parent =
        parsed.items.iter().any(|item| matches!(item, syn::Item::Mod(item) if item.content.is_none()));
    let mut source = Source {
        file: file.to_owned(),
        items: BTreeSet::new(),
        imports: BTreeMap::new(),
        globs: Vec::new(),
        named: Vec::new(),
    };
    let module = paths::module_of(file);
    for item in &parsed.items {
        match item {
            syn::Item::Use(item) if !is_cfg_test(&item.attrs) => {
                imports(&module, &item.tree, &[], &mut source);
            }
            item => source.items.extend(name(item)),
        }
    }
    let reexports = |item: &syn::Item| match item {
        syn::Item::Use(item) => !matches!(item.vis, syn::Visibility::Inherited),
        _ => false,
    };
    let mut counted = parsed.clone();
    counted.items.retain(|item| !is_parent || !reexports(item));
    source.named = paths::named(file, &counted).into_iter().map(|named| named.path).collect();
    source
}

/// Adds the names that a `use` brings in.
fn imports(module: &[String], tree: &syn::UseTree, prefix: &[String], source: &mut Source) {
    let longer = |ident: &syn::Ident| {
        let mut path = prefix.to_vec();
        path.push(ident.to_string());
        path
    };
    match tree {
        syn::UseTree::Path(path) => imports(module, &path.tree, &longer(&path.ident), source),
        syn::UseTree::Name(name) if name.ident == "self" => {
            if let Some(last) = prefix.last() {
                source.imports.insert(last.clone(), paths::resolve(module, prefix));
            }
        }
        syn::UseTree::Name(name) => {
            let path = paths::resolve(module, &longer(&name.ident));
            source.imports.insert(name.ident.to_string(), path);
        }
        syn::UseTree::Rename(rename) => {
            let path = paths::resolve(module, &longer(&rename.ident));
            source.imports.insert(rename.rename.to_string(), path);
        }
        syn::UseTree::Glob(_) => source.globs.push(paths::resolve(module, prefix)),
        syn::UseTree::Group(group) => {
            group.items.iter().for_each(|item| imports(module, item, prefix, source));
        }
    }
}

/// Returns the name that an item defines, if it defines one that a path can end in.
fn name(item: &syn::Item) -> Option<String> {
    let ident = match item {
        syn::Item::Const(item) => &item.ident,
        syn::Item::Enum(item) => &item.ident,
        syn::Item::Fn(item) => &item.sig.ident,
        syn::Item::Macro(item) => item.ident.as_ref()?,
        syn::Item::Static(item) => &item.ident,
        syn::Item::Struct(item) => &item.ident,
        syn::Item::Trait(item) => &item.ident,
        syn::Item::Type(item) => &item.ident,
        syn::Item::Union(item) => &item.ident,
        syn::Item::Mod(item) if item.content.is_some() => &item.ident,
        _ => return None,
    };
    Some(ident.to_string())
}

type Sources = BTreeMap<Vec<String>, Source>;

/// Returns the other files that a file imports, with the paths that name them.
fn arrows<'a>(
    sources: &'a Sources,
    module: &[String],
    source: &Source,
) -> BTreeMap<&'a str, BTreeSet<String>> {
    let mut found: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for path in &source.named {
        let path = absolute(sources, module, path);
        if let Some(file) = target(sources, &path, 0).filter(|file| *file != source.file) {
            found.entry(file).or_default().insert(path.join("::"));
        }
    }
    found
}

/// A path may begin with a child module's name.
fn absolute(sources: &Sources, module: &[String], path: &[String]) -> Vec<String> {
    let below: Vec<String> = module.iter().chain(path.first()).cloned().collect();
    if sources.contains_key(&below) { [module, path].concat() } else { path.to_vec() }
}

/// Returns the file that defines what a path names; nothing if the path leaves the crate.
fn target<'a>(sources: &'a Sources, path: &[String], reexports: usize) -> Option<&'a str> {
    let length = (1..=path.len()).rev().find(|length| sources.contains_key(&path[..*length]))?;
    let (module, rest) = path.split_at(length);
    let source = &sources[module];
    let Some(name) = rest.first().filter(|name| !source.items.contains(*name)) else {
        return Some(&source.file);
    };
    if reexports == REEXPORTS_MAX {
        return Some(&source.file);
    }
    if let Some(import) = source.imports.get(name) {
        let followed = [&absolute(sources, module, import), &rest[1..]].concat();
        // What another crate defines is of no file here.
        return target(sources, &followed, reexports + 1);
    }
    let globs = source.globs.iter().map(|glob| absolute(sources, module, glob));
    let mut globs = globs.filter(|glob| sources.get(glob).is_some_and(|source| source.items.contains(name)));
    let found = globs.next().and_then(|glob| target(sources, &glob, reexports + 1));
    found.or(Some(&source.file))
}

/// Returns the sets of files that reach each other.
fn connected(arrows: &Arrows<'_>) -> Vec<Vec<String>> {
    let reached: BTreeMap<&str, BTreeSet<&str>> =
        arrows.keys().map(|from| (*from, reach(arrows, from))).collect();
    let mut sets = BTreeSet::new();
    for (from, to) in &reached {
        let both = to.iter().filter(|to| reached.get(*to).is_some_and(|back| back.contains(from)));
        let set: BTreeSet<String> = both.map(|file| file.to_string()).collect();
        if set.len() > 1 {
            sets.insert(set.into_iter().collect::<Vec<_>>());
        }
    }
    sets.into_iter().collect()
}

/// Returns the files that can be reached from one.
fn reach<'a>(arrows: &Arrows<'a>, from: &str) -> BTreeSet<&'a str> {
    let mut reached = BTreeSet::new();
    let mut open: Vec<&str> = arrows[from].keys().copied().collect();
    while let Some(file) = open.pop() {
        if reached.insert(file) {
            open.extend(arrows.get(file).into_iter().flat_map(BTreeMap::keys));
        }
    }
    reached
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<Vec<String>> {
        let files: Vec<_> = files.iter().map(|(file, text)| (file.to_string(), text.to_string())).collect();
        cycles(&files).expect("the sources parse").into_iter().map(|cycle| cycle.files).collect()
    }

    #[test]
    fn two_files_that_import_each_other_are_a_cycle_in_every_spelling() {
        for back in [
            "use crate::a::A; pub struct B;",
            "use super::a::{self}; pub struct B;",
            "pub struct B; fn f() { crate::a::g() }",
            "pub struct B; fn f() -> Vec<super::a::A> { vec![] }",
        ] {
            let files =
                [("lib.rs", "mod a; mod b;"), ("a.rs", "use crate::b::B; pub struct A;"), ("b.rs", back)];
            assert_eq!(found(&files), [["a.rs", "b.rs"]], "{back}");
        }
    }

    #[test]
    fn a_longer_cycle_is_one_finding() {
        let files = [
            ("lib.rs", "mod a; mod b; mod c;"),
            ("a.rs", "use crate::b::B; pub struct A;"),
            ("b.rs", "use crate::c::C; pub struct B;"),
            ("c.rs", "use crate::a::A; pub struct C;"),
        ];
        assert_eq!(found(&files), [["a.rs", "b.rs", "c.rs"]]);
    }

    #[test]
    fn a_parent_may_declare_and_show_children_that_use_it() {
        let child = ("a/child.rs", "use super::A; pub struct Child;");
        let parent = |text| [("lib.rs", "mod a;"), ("a/mod.rs", text), child];
        assert_eq!(
            found(&parent("mod child; pub use child::Child; pub struct A;")),
            Vec::<Vec<String>>::new()
        );
        let both = [["a/child.rs", "a/mod.rs"]];
        assert_eq!(found(&parent("mod child; use child::Child; pub struct A;")), both);
        assert_eq!(found(&parent("mod child; pub struct A; fn f() { child::g() }")), both);
    }

    #[test]
    fn a_re_export_leads_to_the_file_that_defines_the_item() {
        let files = [
            ("lib.rs", "mod a;"),
            ("a/mod.rs", "mod x; mod y; pub use x::X; pub use y::*;"),
            ("a/x.rs", "use super::Y; pub struct X;"),
            ("a/y.rs", "use crate::a::X; pub struct Y;"),
        ];
        assert_eq!(found(&files), [["a/x.rs", "a/y.rs"]]);
    }

    #[test]
    fn tests_and_other_crates_are_no_arrows() {
        let files = [
            ("lib.rs", "mod a; mod b;"),
            ("a.rs", "use crate::b::B; pub struct A;"),
            ("b.rs", "use other::a::A; pub struct B; #[cfg(test)] mod tests { use crate::a::A; }"),
        ];
        assert_eq!(found(&files), Vec::<Vec<String>>::new());
    }
}
