//! Every path a source file names, resolved to start with `crate` or another crate's name.
//!
//! Use trees are unfolded, `self` and `super` resolved by the file's place, paths inside macro calls read from their
//! tokens. A macro call is named with its `!`; `async` names itself. `#[cfg(test)]` items are skipped.

use proc_macro2::{TokenStream, TokenTree};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

use crate::tidy::rust::is_cfg_test;

/// A path, and the line that names it.
pub(super) struct NamedPath {
    pub path: Vec<String>,
    pub line: usize,
}

/// Returns the paths that `parsed`, the file at `file` under its crate's sources, names.
pub(super) fn named(file: &str, parsed: &syn::File) -> Vec<NamedPath> {
    let mut paths = Paths { module: module_of(file), found: Vec::new() };
    paths.visit_file(parsed);
    paths.found
}

/// `tablet/scan.rs` is `crate::tablet::scan`, `tablet/mod.rs` is `crate::tablet`, `lib.rs` is `crate`.
pub(super) fn module_of(file: &str) -> Vec<String> {
    let parts = file.trim_end_matches(".rs").split('/');
    let named = parts.filter(|part| !["lib", "main", "mod"].contains(part));
    std::iter::once("crate").chain(named).map(str::to_owned).collect()
}

/// Resolves `self` and `super` at the start of a path that `module` names.
pub(super) fn resolve(module: &[String], path: &[String]) -> Vec<String> {
    let ups = path.iter().take_while(|part| *part == "super").count();
    let (keep, rest) = match path.first().map(String::as_str) {
        Some("self") => (module.len(), &path[1..]),
        Some("super") => (module.len().saturating_sub(ups).max(1), &path[ups..]),
        _ => return path.to_vec(),
    };
    module[..keep].iter().chain(rest).cloned().collect()
}

struct Paths {
    /// Module being visited, inline modules included.
    module: Vec<String>,
    found: Vec<NamedPath>,
}

impl Paths {
    fn add(&mut self, path: &[String], line: usize) {
        if !path.is_empty() {
            self.found.push(NamedPath { path: resolve(&self.module, path), line });
        }
    }

    fn use_tree(&mut self, tree: &syn::UseTree, prefix: &[String]) {
        let longer = |ident: &syn::Ident| {
            let mut path = prefix.to_vec();
            // `use a::b::{self}` names a::b.
            if ident != "self" || path.is_empty() {
                path.push(ident.to_string());
            }
            path
        };
        match tree {
            syn::UseTree::Path(tree_path) => self.use_tree(&tree_path.tree, &longer(&tree_path.ident)),
            syn::UseTree::Name(name) => self.add(&longer(&name.ident), name.span().start().line),
            syn::UseTree::Rename(rename) => self.add(&longer(&rename.ident), rename.span().start().line),
            syn::UseTree::Glob(glob) => self.add(prefix, glob.span().start().line),
            syn::UseTree::Group(group) => group.items.iter().for_each(|item| self.use_tree(item, prefix)),
        }
    }

    /// Paths among the tokens of a macro call: identifiers joined by `::`.
    fn tokens(&mut self, tokens: TokenStream) {
        let mut path: Vec<String> = Vec::new();
        let mut colons = 0;
        let mut line = 0;
        for token in tokens {
            match token {
                TokenTree::Ident(ident) if path.is_empty() || colons == 2 => {
                    line = ident.span().start().line;
                    path.push(ident.to_string());
                    colons = 0;
                }
                TokenTree::Punct(punct) if punct.as_char() == ':' && !path.is_empty() => colons += 1,
                other => {
                    self.end_of_path(&mut path, line);
                    colons = 0;
                    match other {
                        TokenTree::Ident(ident) => path.push(ident.to_string()),
                        TokenTree::Group(group) => self.tokens(group.stream()),
                        _ => {}
                    }
                }
            }
        }
        self.end_of_path(&mut path, line);
    }

    fn end_of_path(&mut self, path: &mut Vec<String>, line: usize) {
        if path.len() > 1 {
            self.add(path, line);
        }
        path.clear();
    }
}

impl<'ast> Visit<'ast> for Paths {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        if !is_cfg_test(attributes(item)) {
            visit::visit_item(self, item);
        }
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        if !is_cfg_test(&item.attrs) {
            visit::visit_impl_item_fn(self, item);
        }
    }

    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        self.module.push(item.ident.to_string());
        visit::visit_item_mod(self, item);
        self.module.pop();
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        self.use_tree(&item.tree, &[]);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.segments.len() > 1 {
            let parts: Vec<String> = path.segments.iter().map(|part| part.ident.to_string()).collect();
            self.add(&parts, path.span().start().line);
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        let mut parts: Vec<String> = call.path.segments.iter().map(|part| part.ident.to_string()).collect();
        let name = parts.pop().expect("a path has a segment");
        let biased =
            call.tokens.clone().into_iter().next().is_some_and(|first| first.to_string() == "biased");
        let without = if name == "select" && !biased { " without biased" } else { "" };
        parts.push(format!("{name}!{without}"));
        self.add(&parts, call.span().start().line);
        self.tokens(call.tokens.clone());
    }

    fn visit_signature(&mut self, signature: &'ast syn::Signature) {
        if let Some(token) = &signature.asyncness {
            self.add(&["async".to_owned()], token.span().start().line);
        }
        visit::visit_signature(self, signature);
    }

    fn visit_expr_async(&mut self, expr: &'ast syn::ExprAsync) {
        self.add(&["async".to_owned()], expr.async_token.span().start().line);
        visit::visit_expr_async(self, expr);
    }
}

/// The attributes of the kinds of item that may be test-only.
fn attributes(item: &syn::Item) -> &[syn::Attribute] {
    match item {
        syn::Item::Mod(item) => &item.attrs,
        syn::Item::Use(item) => &item.attrs,
        syn::Item::Fn(item) => &item.attrs,
        syn::Item::Impl(item) => &item.attrs,
        syn::Item::Struct(item) => &item.attrs,
        syn::Item::Const(item) => &item.attrs,
        _ => &[],
    }
}
