//! Sizes and docs of one Rust file.

use std::ops::RangeInclusive;
use std::path::Path;

use syn::punctuated::Punctuated;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

/// Lines of a function, signature and braces included.
const FUNCTION_LINES_MAX: usize = 70;
/// Lines of a file, its `#[cfg(test)]` items not counted.
const FILE_LINES_MAX: usize = 600;
/// Characters of a line. rustfmt limits code further; this limits comments and strings, which rustfmt leaves alone.
/// Tests may have longer lines: an expected text is often one line.
const LINE_CHARS_MAX: usize = 120;

/// Adds the faults of `text` to `findings`.
pub(crate) fn check(file: &Path, text: &str, findings: &mut Vec<String>) {
    let name = file.display();
    let parsed = match syn::parse_file(text) {
        Ok(parsed) => parsed,
        Err(error) => {
            findings.push(format!("{name}:{}: {error}", error.span().start().line));
            return;
        }
    };
    if !is_test(file) && !parsed.attrs.iter().any(|attr| attr.path().is_ident("doc")) {
        findings.push(format!("{name}: no module docs (`//!`)"));
    }
    let mut sizes = Sizes::default();
    sizes.visit_file(&parsed);
    for (line, function, lines) in sizes.long_functions {
        findings
            .push(format!("{name}:{line}: fn {function} has {lines} lines; at most {FUNCTION_LINES_MAX}"));
    }
    if is_test(file) {
        return;
    }
    let untested = |line: &usize| !sizes.tests.iter().any(|tests| tests.contains(line));
    let lines = (1..=text.lines().count()).filter(untested).count();
    if lines > FILE_LINES_MAX {
        findings.push(format!("{name}: {lines} lines without tests; at most {FILE_LINES_MAX}"));
    }
    for (number, line) in text.lines().enumerate().filter(|(number, _)| untested(&(number + 1))) {
        let chars = line.chars().count();
        if chars > LINE_CHARS_MAX && !line.contains("://") {
            findings.push(format!("{name}:{}: {chars} characters; at most {LINE_CHARS_MAX}", number + 1));
        }
    }
}

/// Returns true if a file holds only tests.
pub(crate) fn is_test(file: &Path) -> bool {
    let stem = file.file_stem().unwrap_or_default().to_string_lossy();
    file.components().any(|part| part.as_os_str() == "tests") || stem == "tests" || stem.ends_with("_tests")
}

#[derive(Default)]
struct Sizes {
    long_functions: Vec<(usize, String, usize)>,
    /// Lines of `#[cfg(test)]` modules.
    tests: Vec<RangeInclusive<usize>>,
}

impl Sizes {
    /// From the signature to the closing brace: docs and attributes are not part of a function's size.
    fn function(&mut self, signature: &syn::Signature, block: &syn::Block) {
        let start = signature.span().start().line;
        let lines = block.span().end().line - start + 1;
        if lines > FUNCTION_LINES_MAX {
            self.long_functions.push((start, signature.ident.to_string(), lines));
        }
    }
}

impl<'ast> Visit<'ast> for Sizes {
    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.function(&item.sig, &item.block);
        visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.function(&item.sig, &item.block);
        visit::visit_impl_item_fn(self, item);
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        if let Some(block) = &item.default {
            self.function(&item.sig, block);
        }
        visit::visit_trait_item_fn(self, item);
    }

    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if is_cfg_test(&item.attrs) && item.content.is_some() {
            let span = item.span();
            self.tests.push(span.start().line..=span.end().line);
        }
        visit::visit_item_mod(self, item);
    }
}

/// Returns true if these attributes hold `#[cfg(test)]`, or `#[cfg(all(test, …))]`.
pub(crate) fn is_cfg_test(attrs: &[syn::Attribute]) -> bool {
    attrs.iter().any(|attr| {
        attr.path().is_ident("cfg") && attr.parse_args::<syn::Meta>().is_ok_and(|meta| needs_test(&meta))
    })
}

fn needs_test(condition: &syn::Meta) -> bool {
    let syn::Meta::List(list) = condition else { return condition.path().is_ident("test") };
    let parts = list.parse_args_with(Punctuated::<syn::Meta, syn::Token![,]>::parse_terminated);
    list.path.is_ident("all") && parts.is_ok_and(|parts| parts.iter().any(needs_test))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(text: &str) -> Vec<String> {
        let mut findings = Vec::new();
        check(Path::new("engine/src/x.rs"), text, &mut findings);
        findings
    }

    #[test]
    fn a_short_documented_file_passes() {
        assert_eq!(findings("//! What it is.\n\nfn f() {}\n"), Vec::<String>::new());
    }

    #[test]
    fn long_functions_and_missing_docs_are_found_with_their_line() {
        let text = format!("struct S;\nimpl S {{\n/// Docs.\nfn long() {{\n{}}}\n}}\n", "g();\n".repeat(69));
        let expected = [
            "engine/src/x.rs: no module docs (`//!`)",
            "engine/src/x.rs:4: fn long has 71 lines; at most 70",
        ];
        assert_eq!(findings(&text), expected);
    }

    #[test]
    fn tests_do_not_count_towards_the_size_of_a_file() {
        let consts = |count: usize| (0..count).map(|i| format!("const A{i}: u8 = 0;\n")).collect::<String>();
        let text = format!("//! Docs.\n{}#[cfg(test)]\nmod tests {{\n{}}}\n", consts(590), consts(100));
        assert_eq!(findings(&text), Vec::<String>::new());
        let text = format!("//! Docs.\n{}", consts(600));
        assert_eq!(findings(&text), ["engine/src/x.rs: 601 lines without tests; at most 600"]);
    }

    #[test]
    fn long_lines_are_found_unless_they_hold_an_address() {
        let comment = format!("//! {}\n", "x".repeat(120));
        assert_eq!(findings(&comment), ["engine/src/x.rs:1: 124 characters; at most 120"]);
        assert_eq!(findings(&format!("//! https://{}\n", "x".repeat(120))), Vec::<String>::new());
    }
}
