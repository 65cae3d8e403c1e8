//! Names of public types: one meaning per name and crate, and no name that is no noun.
//!
//! Every `pub` struct, enum, union, trait and type alias of a crate's sources counts, also if its module is
//! private: a reader greps for names, not for paths. Tests, `#[cfg(test)]` items, items inside functions and inside
//! private inline modules do not count.

use std::collections::BTreeMap;
use std::path::Path;

use super::rust::{is_cfg_test, is_test};

/// Participles, pronouns, prepositions and adverbs: they name nothing by themselves.
const BARE: [&str; 40] = [
    "Asked", "At", "Began", "Begin", "Begun", "Chosen", "Did", "Done", "For", "Found", "Given", "Gone",
    "Has", "Heard", "Held", "How", "Kept", "Laid", "Left", "Made", "Named", "Now", "Own", "Put", "Ran",
    "Read", "Said", "Seen", "Sent", "Taken", "Told", "Up", "Used", "Wanted", "What", "Where", "Which", "Who",
    "Whose", "Written",
];

/// Names that a crate may have twice, as `crate: name`.
const TWICE: [&str; 0] = [];

/// Public types of all crates.
#[derive(Default)]
pub(super) struct NameLint {
    /// Places by crate and name.
    types: BTreeMap<(String, String), Vec<String>>,
    bare: Vec<String>,
}

impl NameLint {
    /// Reads one file; a file outside a crate's `src` and a file of tests are passed over.
    pub(super) fn add(&mut self, file: &Path, text: &str) {
        let name = file.display().to_string();
        let Some((package, _)) = name.split_once("/src/") else { return };
        if is_test(file) || file.extension().is_none_or(|ext| ext != "rs") {
            return;
        }
        // A syntax error is reported by `rust::check`.
        let Ok(parsed) = syn::parse_file(text) else { return };
        self.items(package, &name, &parsed.items);
    }

    fn items(&mut self, package: &str, file: &str, items: &[syn::Item]) {
        for item in items {
            let (attrs, vis, ident) = match item {
                syn::Item::Struct(item) => (&item.attrs, &item.vis, &item.ident),
                syn::Item::Enum(item) => (&item.attrs, &item.vis, &item.ident),
                syn::Item::Union(item) => (&item.attrs, &item.vis, &item.ident),
                syn::Item::Trait(item) => (&item.attrs, &item.vis, &item.ident),
                syn::Item::Type(item) => (&item.attrs, &item.vis, &item.ident),
                syn::Item::Mod(module) => {
                    if let Some((_, items)) = module.content.as_ref().filter(|_| is_public(&module.vis)) {
                        self.items(package, file, items);
                    }
                    continue;
                }
                _ => continue,
            };
            // A type behind a `cfg` replaces its namesake behind the opposite one.
            let is_conditional = attrs.iter().any(|attr| attr.path().is_ident("cfg"));
            if !is_public(vis) || is_cfg_test(attrs) || is_conditional {
                continue;
            }
            let place = format!("{file}:{}", ident.span().start().line);
            if BARE.iter().any(|bare| ident == bare) {
                self.bare.push(format!("{place}: {ident}: a public type is named with a noun"));
            }
            self.types.entry((package.to_owned(), ident.to_string())).or_default().push(place);
        }
    }

    /// Adds every name that is taken twice in a crate, and every name that is no noun.
    pub(super) fn report(&self, findings: &mut Vec<String>) {
        findings.extend(self.bare.iter().cloned());
        for ((package, name), places) in &self.types {
            if places.len() > 1 && !TWICE.contains(&format!("{package}: {name}").as_str()) {
                findings.push(format!(
                    "{}: {name}: {package} has this name also at {}",
                    places[0],
                    places[1..].join(", ")
                ));
            }
        }
    }
}

fn is_public(vis: &syn::Visibility) -> bool {
    matches!(vis, syn::Visibility::Public(_))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(files: &[(&str, &str)]) -> Vec<String> {
        let mut lint = NameLint::default();
        files.iter().for_each(|(file, text)| lint.add(Path::new(file), text));
        let mut findings = Vec::new();
        lint.report(&mut findings);
        findings
    }

    #[test]
    fn a_name_taken_twice_in_a_crate_is_found() {
        let files = [("engine/src/a.rs", "pub struct Event;"), ("engine/src/b/c.rs", "\npub enum Event {}")];
        assert_eq!(
            findings(&files),
            ["engine/src/a.rs:1: Event: engine has this name also at engine/src/b/c.rs:2"]
        );
    }

    #[test]
    fn other_crates_private_types_and_tests_may_have_the_name() {
        let files = [
            ("engine/src/a.rs", "pub struct Event;"),
            ("node/src/a.rs", "pub struct Event;"),
            ("engine/src/b.rs", "struct Event; pub(crate) struct Event2; mod inner { pub struct Event; }"),
            ("engine/src/tests.rs", "pub struct Event;"),
            ("engine/src/c.rs", "#[cfg(test)] pub struct Event;"),
            ("engine/tests/a.rs", "pub struct Event;"),
        ];
        assert_eq!(findings(&files), Vec::<String>::new());
    }

    #[test]
    fn a_bare_participle_is_found() {
        let found = findings(&[("sim/src/a.rs", "pub struct Held;\nstruct Kept;")]);
        assert_eq!(found, ["sim/src/a.rs:1: Held: a public type is named with a noun"]);
    }
}
