//! Mutant schemata: all mutants in one program, of which an environment variable selects one. One build serves all
//! patches.
//!
//! A function that a patch changes has its original body and the patched one side by side:
//!
//! ```text
//! fn f(..) { A }                  original
//! fn f(..) { B }                  after patch 7
//! fn f(..) { match crate::mutant::number() { 7 => { B } _ => { A } } }
//! ```
//!
//! A patch that changes anything besides function bodies cannot be joined and is built by itself.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::ops::Range;
use std::path::Path;

use anyhow::{Context, Result};
use syn::spanned::Spanned;
use syn::visit::Visit;

use scratch_tree::{apply, copy_tree};

/// Environment variable with the number of the active mutant; none if missing or 0.
pub(super) const CHOICE: &str = "NYALA_PLANTED";

/// Module added to each crate with a joined patch. It reads the variable.
const MODULE: &str = r#"
#[doc(hidden)]
pub mod mutant {
    use std::sync::atomic::{AtomicU32, Ordering};

    static NUMBER: AtomicU32 = AtomicU32::new(u32::MAX);

    pub fn number() -> u32 {
        match NUMBER.load(Ordering::Relaxed) {
            u32::MAX => asked(),
            number => number,
        }
    }

    #[cold]
    #[allow(clippy::disallowed_methods)]
    fn asked() -> u32 {
        let number = std::env::var("NYALA_PLANTED").ok().and_then(|text| text.parse().ok()).unwrap_or(0);
        NUMBER.store(number, Ordering::Relaxed);
        number
    }
}
"#;

/// Patched bodies of a file, by the index of the function.
type Bodies = BTreeMap<usize, Vec<(u32, String)>>;

/// Makes `tree` a copy of the tree `root` with every patch that can be joined, each under its number. Returns the
/// numbers of those that cannot.
pub(super) fn join(root: &Path, plain: &Path, tree: &Path, patches: &[(u32, &Path)]) -> Result<Vec<u32>> {
    copy_tree(root, plain)?;
    let (mut joined, mut alone) = (BTreeMap::<String, Bodies>::new(), Vec::new());
    for (number, patch) in patches {
        match bodies_of(root, plain, patch)? {
            Some(found) => found.into_iter().for_each(|(file, function, body)| {
                joined.entry(file).or_default().entry(function).or_default().push((*number, body));
            }),
            None => alone.push(*number),
        }
    }
    for (file, bodies) in &joined {
        let path = plain.join(file);
        let text = with_bodies(&fs::read_to_string(&path)?, bodies)?;
        fs::write(path, text)?;
    }
    for name in crates_of(joined.keys()) {
        let path = plain.join(name).join("src/lib.rs");
        let text = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))? + MODULE;
        fs::write(path, text)?;
    }
    // The build sees only what differs from the last time.
    copy_tree(plain, tree)?;
    Ok(alone)
}

/// Returns the folders of the crates that files belong to.
fn crates_of<'a>(files: impl Iterator<Item = &'a String>) -> BTreeSet<&'a str> {
    files.filter_map(|file| file.split_once("/src/")).map(|(folder, _)| folder).collect()
}

/// Returns the functions whose bodies a patch changes, with their files; `None` if it changes more.
fn bodies_of(root: &Path, plain: &Path, patch: &Path) -> Result<Option<Vec<(String, usize, String)>>> {
    let text = fs::read_to_string(patch).with_context(|| format!("reading {}", patch.display()))?;
    let files: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("+++ b/")).collect();
    apply(plain, patch)?;
    let mut found = Some(Vec::new());
    for file in files {
        let (old, new) = (fs::read_to_string(root.join(file))?, fs::read_to_string(plain.join(file))?);
        fs::write(plain.join(file), &old)?;
        match changed(&old, &new).with_context(|| format!("{file} as {} leaves it", patch.display()))? {
            Some(bodies) => {
                let named = bodies.into_iter().map(|(number, body)| (file.to_string(), number, body));
                found.iter_mut().for_each(|found| found.extend(named.clone()));
            }
            None => found = None,
        }
    }
    Ok(found)
}

/// Returns the bodies of `new` that differ from those of `old`; `None` if anything else differs.
fn changed(old: &str, new: &str) -> Result<Option<Vec<(usize, String)>>> {
    let (before, after) = (functions(old)?, functions(new)?);
    if before.len() != after.len() || around(old, &before) != around(new, &after) {
        return Ok(None);
    }
    let pairs = before.iter().zip(&after).enumerate();
    let differ = pairs.filter(|(_, (one, other))| old[one.body.clone()] != new[other.body.clone()]);
    let differ: Vec<_> = differ.collect();
    if differ.iter().any(|(_, (one, _))| one.fixed) {
        return Ok(None);
    }
    Ok(Some(differ.into_iter().map(|(at, (_, other))| (at, new[other.body.clone()].to_string())).collect()))
}

/// Returns the text outside all bodies.
fn around<'a>(text: &'a str, functions: &[Function]) -> Vec<&'a str> {
    let mut from = 0;
    let mut parts = Vec::new();
    for function in functions {
        parts.push(&text[from..function.body.start]);
        from = function.body.end;
    }
    parts.push(&text[from..]);
    parts
}

/// Returns the text with these bodies beside the original ones.
fn with_bodies(text: &str, bodies: &Bodies) -> Result<String> {
    let functions = functions(text)?;
    let mut out = text.to_string();
    for (function, others) in bodies.iter().rev() {
        let body = functions[*function].body.clone();
        let arms: String = others.iter().map(|(number, other)| format!("{number} => {other}\n")).collect();
        let own = &text[body.clone()];
        out.replace_range(body, &format!("{{\nmatch crate::mutant::number() {{\n{arms}_ => {own}\n}}\n}}"));
    }
    Ok(out)
}

struct Function {
    body: Range<usize>,
    /// True if the function cannot select a body at run time: it is const, or returns an unnameable type.
    fixed: bool,
}

/// Returns the outermost functions of a file, in order.
fn functions(text: &str) -> Result<Vec<Function>> {
    let mut found = Found(Vec::new());
    found.visit_file(&syn::parse_file(text).context("parsing")?);
    Ok(found.0)
}

struct Found(Vec<Function>);

impl Found {
    fn add(&mut self, sig: &syn::Signature, block: &syn::Block) {
        let mut nameless = MissingName(false);
        nameless.visit_return_type(&sig.output);
        let fixed = sig.constness.is_some() || nameless.0;
        // With positions, by a feature of the crate.
        let span: proc_macro2::Span = block.span();
        self.0.push(Function { body: span.byte_range(), fixed });
    }
}

impl<'ast> Visit<'ast> for Found {
    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.add(&item.sig, &item.block);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.add(&item.sig, &item.block);
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        item.default.iter().for_each(|block| self.add(&item.sig, block));
    }
}

struct MissingName(bool);

impl<'ast> Visit<'ast> for MissingName {
    fn visit_type_impl_trait(&mut self, _: &'ast syn::TypeImplTrait) {
        self.0 = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: &str =
        "const N: u8 = 1;\nfn a(x: u8) -> u8 {\n    x + N\n}\nstruct S;\nimpl S {\n    fn b(&self) {}\n}\n";

    #[test]
    fn a_patched_body_stands_beside_the_original() {
        let new = OLD.replace("x + N", "x - N");
        let bodies = changed(OLD, &new).expect("it parses").expect("only a body");
        assert_eq!(bodies, [(0, "{\n    x - N\n}".to_string())]);
        let joined = with_bodies(OLD, &Bodies::from([(0, vec![(7, bodies[0].1.clone())])])).expect("joined");
        assert!(joined.contains("7 => {\n    x - N\n}\n_ => {\n    x + N\n}"), "{joined}");
        assert_eq!(functions(&joined).expect("it parses").len(), 2);
    }

    #[test]
    fn the_crate_of_a_file_is_the_folder_above_its_sources() {
        let files = ["node/backup/src/create.rs", "engine/src/tablet/scan.rs", "engine/src/wal/mod.rs"];
        let files = files.map(str::to_string);
        assert_eq!(Vec::from_iter(crates_of(files.iter())), ["engine", "node/backup"]);
    }

    #[test]
    fn changes_outside_bodies_are_not_joined() {
        for (from, to) in
            [("= 1", "= 2"), ("x: u8)", "x: u8, _y: u8)"), ("struct S;", "struct S;\nfn c() {}\n")]
        {
            assert_eq!(changed(OLD, &OLD.replace(from, to)).expect("it parses"), None, "{to}");
        }
        let constant = OLD.replace("fn a", "const fn a");
        assert_eq!(changed(&constant, &constant.replace("x +", "x -")).expect("it parses"), None);
    }
}
