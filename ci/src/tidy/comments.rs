//! Prose of a source file: comment text by line, without code, strings and quoted identifiers.
//!
//! ```text
//!   *.rs    //, ///, //! and /* */, found by a lexer that knows strings, raw strings, characters and lifetimes
//!   *.tla   \* and (* *)
//!   *.md    everything outside code fences and outside tables between `<!-- name -->` and `<!-- end of name -->`
//! ```
//!
//! Text between backticks is not prose: identifiers and frozen words are quoted there.

/// A line of prose.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ProseLine {
    /// From 1.
    pub line: usize,
    pub text: String,
    pub kind: ProseKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ProseKind {
    /// First line of a `///` comment.
    DocStart,
    Other,
}

/// Returns the comments of a Rust file.
pub(super) fn rust(source: &str) -> Vec<ProseLine> {
    let mut lexer = RustLexer { rest: source, line: 1, prose: Vec::new() };
    while let Some(next) = lexer.rest.chars().next() {
        lexer.step(next);
    }
    let mut prose = lexer.prose;
    mark_doc_starts(&mut prose);
    without_fences(prose)
}

/// Doc comments keep their third slash until here.
fn mark_doc_starts(prose: &mut [ProseLine]) {
    let mut last_doc_line = 0;
    for line in prose {
        let Some(text) = line.text.strip_prefix('/').filter(|text| !text.starts_with('/')) else { continue };
        let is_start = last_doc_line + 1 != line.line || last_doc_line == 0;
        last_doc_line = line.line;
        line.text = text.to_owned();
        line.kind = if is_start { ProseKind::DocStart } else { ProseKind::Other };
    }
}

/// Drops pictures and examples of doc comments.
fn without_fences(prose: Vec<ProseLine>) -> Vec<ProseLine> {
    let mut is_fenced = false;
    let mut last_line = 0;
    let mut kept = Vec::new();
    for line in prose {
        if line.line > last_line + 1 {
            is_fenced = false;
        }
        last_line = line.line;
        if line.text.trim_start_matches('!').trim_start().starts_with("```") {
            is_fenced = !is_fenced;
        } else if !is_fenced {
            kept.push(line);
        }
    }
    kept
}

struct RustLexer<'a> {
    rest: &'a str,
    line: usize,
    prose: Vec<ProseLine>,
}

impl RustLexer<'_> {
    fn step(&mut self, next: char) {
        if self.rest.starts_with("//") {
            let end = self.rest.find('\n').unwrap_or(self.rest.len());
            self.push(self.rest[2..end].to_owned());
            self.skip(end);
        } else if self.rest.starts_with("/*") {
            self.block_comment();
        } else if next == '"' {
            self.string();
        } else if let Some(hashes) = self.raw_string() {
            let open = self.rest.find('"').expect("a raw string opens") + 1;
            let close = format!("\"{}", "#".repeat(hashes));
            let end = self.rest[open..].find(&close).map_or(self.rest.len(), |at| open + at + close.len());
            self.skip(end);
        } else if next == '\'' {
            self.quote();
        } else if next.is_alphanumeric() || next == '_' {
            let end = self.rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(self.rest.len());
            // The prefix of a string is not a word before it.
            let is_prefix =
                matches!(&self.rest[..end], "b" | "c") && self.rest[end..].starts_with(['"', '\'']);
            self.skip(if is_prefix { 1 } else { end });
        } else {
            self.skip(next.len_utf8());
        }
    }

    fn push(&mut self, text: String) {
        self.prose.push(ProseLine { line: self.line, text, kind: ProseKind::Other });
    }

    fn skip(&mut self, bytes: usize) {
        let (skipped, rest) = self.rest.split_at(bytes);
        self.line += skipped.matches('\n').count();
        self.rest = rest;
    }

    fn block_comment(&mut self) {
        let (mut depth, mut end) = (0, 0);
        while end < self.rest.len() {
            let here = &self.rest[end..];
            if here.starts_with("/*") {
                depth += 1;
                end += 2;
            } else if here.starts_with("*/") {
                depth -= 1;
                end += 2;
                if depth == 0 {
                    break;
                }
            } else {
                end += here.chars().next().map_or(1, char::len_utf8);
            }
        }
        let text = self.rest[..end].to_owned();
        for (at, line) in text.lines().enumerate() {
            let text = line.replace("/*", " ").replace("*/", " ");
            self.prose.push(ProseLine { line: self.line + at, text, kind: ProseKind::Other });
        }
        self.skip(end);
    }

    fn string(&mut self) {
        let mut escaped = false;
        for (at, c) in self.rest.char_indices().skip(1) {
            match c {
                _ if escaped => escaped = false,
                '\\' => escaped = true,
                '"' => return self.skip(at + 1),
                _ => {}
            }
        }
        self.skip(self.rest.len());
    }

    /// Returns the number of hashes if a raw string begins here.
    fn raw_string(&self) -> Option<usize> {
        let after = self.rest.strip_prefix('r').or_else(|| self.rest.strip_prefix("br"));
        let after = after.or_else(|| self.rest.strip_prefix("cr"))?;
        let hashes = after.chars().take_while(|c| *c == '#').count();
        after[hashes..].starts_with('"').then_some(hashes)
    }

    /// A character, or a lifetime.
    fn quote(&mut self) {
        let mut chars = self.rest.char_indices().skip(1);
        let (_, first) = chars.next().unwrap_or((0, ' '));
        let second = chars.next();
        if first == '\\' {
            let from = second.map_or(self.rest.len(), |(at, c)| at + c.len_utf8());
            let end = self.rest[from..].find('\'').map_or(self.rest.len(), |at| from + at + 1);
            self.skip(end);
        } else {
            match second {
                Some((at, '\'')) => self.skip(at + 1),
                _ => self.skip(1),
            }
        }
    }
}

/// Returns the comments of a TLA+ module.
pub(super) fn tla(source: &str) -> Vec<ProseLine> {
    let mut prose = Vec::new();
    let mut is_block = false;
    for (at, line) in source.lines().enumerate() {
        let mut text = String::new();
        let mut rest = line;
        while !rest.is_empty() {
            if is_block {
                let end = rest.find("*)");
                text.push_str(&rest[..end.unwrap_or(rest.len())]);
                is_block = end.is_none();
                rest = end.map_or("", |end| &rest[end + 2..]);
            } else if let Some(comment) = rest.strip_prefix("\\*") {
                text.push_str(comment);
                rest = "";
            } else if let Some(comment) = rest.strip_prefix("(*") {
                is_block = true;
                rest = comment;
            } else if let Some(string) = rest.strip_prefix('"') {
                rest = string.find('"').map_or("", |end| &string[end + 1..]);
            } else {
                rest = &rest[rest.chars().next().map_or(1, char::len_utf8)..];
            }
        }
        if !text.trim().is_empty() {
            prose.push(ProseLine { line: at + 1, text, kind: ProseKind::Other });
        }
    }
    prose
}

/// Returns the prose of a Markdown page.
pub(super) fn markdown(source: &str) -> Vec<ProseLine> {
    let mut prose = Vec::new();
    let (mut is_fenced, mut is_generated) = (false, false);
    for (at, line) in source.lines().enumerate() {
        let start = line.trim_start();
        if start.starts_with("```") {
            is_fenced = !is_fenced;
        } else if let Some(marker) = start.strip_prefix("<!-- ") {
            is_generated = !marker.starts_with("end of ");
        } else if !is_fenced && !is_generated && !line.starts_with("    ") {
            prose.push(ProseLine { line: at + 1, text: line.to_owned(), kind: ProseKind::Other });
        }
    }
    prose
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(prose: Vec<ProseLine>) -> Vec<(usize, String)> {
        prose.into_iter().map(|line| (line.line, line.text.trim().to_owned())).collect()
    }

    #[test]
    fn comments_are_told_from_strings_characters_and_lifetimes() {
        let source = "/// Doc.\nfn f<'a>(x: &'a str) -> char { // one\n let s = \"// no \\\" // no\"; '\"' }\n\
                      const R: &str = r#\"// no \" // no\"#; /* two\nlines */ const B: &[u8] = b\"// no\";\n\
                      const Q: char = '\\''; // three";
        let expected =
            [(1, "Doc."), (2, "one"), (4, "two"), (5, "lines"), (6, "three")].map(|(n, t)| (n, t.to_owned()));
        assert_eq!(texts(rust(source)), expected);
    }

    #[test]
    fn a_raw_identifier_and_a_word_that_ends_in_r_are_no_raw_strings() {
        assert_eq!(texts(rust("let var = \"a // b\"; r#type // yes")), [(1, "yes".to_owned())]);
    }

    #[test]
    fn the_first_line_of_a_doc_comment_is_marked() {
        let kinds: Vec<_> = rust("/// One.\n/// Two.\nstruct S {\n/// Three.\na: u8 }")
            .iter()
            .map(|line| line.kind)
            .collect();
        assert_eq!(kinds, [ProseKind::DocStart, ProseKind::Other, ProseKind::DocStart]);
    }

    #[test]
    fn pictures_of_doc_comments_are_no_prose() {
        assert_eq!(
            texts(rust("//! Head.\n//! ```text\n//! picture\n//! ```\n//! Tail."))[1],
            (5, "! Tail.".to_owned())
        );
    }

    #[test]
    fn tla_comments_are_found() {
        let source = "A == 1 \\* one\n(* two\nthree *) B == \"\\* no\"\n";
        let expected = [(1, "one"), (2, "two"), (3, "three")].map(|(n, t)| (n, t.to_owned()));
        assert_eq!(texts(tla(source)), expected);
    }

    #[test]
    fn fences_and_generated_tables_of_pages_are_no_prose() {
        let source = "One\n```\nno\n```\n<!-- models -->\n| no |\n<!-- end of models -->\ntwo\n    no\n";
        assert_eq!(texts(markdown(source)), [(1, "One".to_owned()), (8, "two".to_owned())]);
    }
}
