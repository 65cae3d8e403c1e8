//! Word lint: the private words of `ci/STYLE.md` must not return to comments and pages.
//!
//! ```text
//!   comments.rs ─► lines of prose ─► words, without what stands in backticks ─► WORDS: pattern, instead, allowed
//! ```
//!
//! A pattern matches whole words, also across a line break, and never across punctuation. Each pattern has a ratchet:
//! the number of uses that the tree may have. A ratchet is only ever lowered; 0 is a ban.

use std::collections::BTreeMap;
use std::path::Path;

use super::comments::{self, ProseKind, ProseLine};

/// A word or phrase, or several with `|` between them.
struct Word {
    /// Lower case; a `*` at the end of a word matches any ending, `^` at the start the first word of a doc comment.
    pattern: &'static str,
    instead: &'static str,
    /// Uses that the tree may have.
    allowed: usize,
}

const fn word(pattern: &'static str, instead: &'static str, allowed: usize) -> Word {
    Word { pattern, instead, allowed }
}

/// Uses shown of a pattern whose ratchet is not 0: which of them are new is not known.
const SHOWN_MAX: usize = 20;

static WORDS: [Word; 43] = [
    word("^what|^how|^whether|^who|^where|^which|^why|^when", "a noun; a bool field \"True if\"; a verb", 0),
    word("^something|^somebody|^someone|^thing|^things", "a noun", 0),
    word("^see the module", "one noun phrase", 0),
    word("whoever|whomever", "the leader, caller or client that …", 0),
    word("somebody|someone", "caller, client, operator", 0),
    word("nobody|no one", "no reader, no caller; nothing", 0),
    word("anybody|anyone|everybody|everyone", "any client, all servers", 0),
    word("befall|befalls|befell|befallen", "applies to, hits", 0),
    word("of paper", "modelled, cost model", 0),
    word("mend|mends|mended|mending", "fix, repair", 0),
    word("for good", "permanently", 0),
    word("for ever", "forever, without bound", 0),
    word("so many|so long|so much", "the amount, with its unit", 0),
    word("in a hundred|in a thousand", "percent, per mille", 0),
    word("in so many", "once every N", 0),
    word("moment|moments", "timestamp, time, trigger, event", 0),
    word("judge|judges|judged|judging", "oracle; check, evaluate", 0),
    word("blow|blows|fuse|fuses", "triggered fault, trigger", 0),
    word("reign|reigns|founding|founded|acquaint*", "leadership, initialization, known", 0),
    word("bury|buries|buried", "deleted", 0),
    word("plant|plants|planted|planting", "mutant; inject", 0),
    word("objects to|object to|objected to", "reports a violation, rejects", 1),
    word("became of|came of|becomes of|become of|came to", "outcome, result of", 0),
    word("anew", "again; copied; rewritten", 0),
    word("all the same|after all|a good deal", "nothing", 6),
    word("stand still|stands still|stood still|standing still", "stalls; makes no progress", 0),
    word("surely", "certainly past; definite", 0),
    word("row set|row sets", "rowset", 0),
    word("file of changes|files of changes", "delta file", 0),
    word("pre-election|pre-elections", "pre-vote", 0),
    word("hand over|hands over|handed over|hand-over|handing over", "transfers leadership", 0),
    word("take back|takes back|taken back|took back", "truncates; withdraws", 0),
    word("room|spoken for", "reservation, space", 0),
    word("promise|promises|promised", "reservation; safe time; guarantees", 1),
    word("at rest|resting", "hibernated", 0),
    word("heal|heals|healed", "ends", 0),
    word("power goes|power went", "power is cut", 0),
    word("tells of|told of|tell of", "reports", 0),
    word("hears|heard", "receives a heartbeat, a message", 0),
    word("goes by|go by", "uses", 0),
    word("lie|lies|lay", "is placed on, is in", 0),
    word("goes on", "continues", 0),
    word("look after|looks after|see to|sees to", "manage, ensure", 0),
];

/// Pages that commands write, and the guide itself, which names the words.
const SKIPPED: [&str; 6] =
    ["ci/STYLE.md", "ci/COMPATIBILITY.md", "benches/VERSUS", "sim/MUTANTS.md", "sim/FAULTS.md", "sim/STUDY-"];

/// Uses of every pattern in the files given so far.
pub(super) struct WordLint {
    uses: BTreeMap<usize, Vec<Use>>,
}

/// Place and text of one use.
struct Use {
    place: String,
    text: String,
}

impl WordLint {
    pub(super) fn new() -> Self {
        WordLint { uses: BTreeMap::new() }
    }

    /// Reads one file; a file without prose is passed over.
    pub(super) fn add(&mut self, file: &Path, text: &str) {
        let name = file.display().to_string();
        if SKIPPED.iter().any(|skipped| name.starts_with(skipped)) {
            return;
        }
        let prose = match file.extension().and_then(|ext| ext.to_str()) {
            Some("rs") => comments::rust(text),
            Some("tla") => comments::tla(text),
            Some("md") => comments::markdown(text),
            _ => return,
        };
        for (at, line, found) in uses(&prose) {
            let uses = self.uses.entry(at).or_default();
            uses.push(Use { place: format!("{name}:{line}"), text: found });
        }
    }

    /// Adds a finding for every use of a pattern that the tree has too often.
    pub(super) fn report(&self, findings: &mut Vec<String>) {
        for (at, word) in WORDS.iter().enumerate() {
            let uses = self.uses.get(&at).map_or(&[][..], Vec::as_slice);
            if uses.len() <= word.allowed {
                continue;
            }
            let shown = if word.allowed == 0 { uses.len() } else { SHOWN_MAX };
            for found in uses.iter().take(shown) {
                findings.push(format!("{}: {}: use {}", found.place, found.text, word.instead));
            }
            if word.allowed > 0 {
                let (pattern, count, allowed) = (word.pattern, uses.len(), word.allowed);
                findings.push(format!("words: {pattern}: {count} uses; at most {allowed}"));
            }
        }
    }

    /// Prints every pattern with its count and its ratchet.
    pub(super) fn print_counts(&self) {
        for (at, word) in WORDS.iter().enumerate() {
            let count = self.uses.get(&at).map_or(0, Vec::len);
            println!("{count:>6} of {:>4}  {}", word.allowed, word.pattern);
        }
    }

    /// Prints every use, with its place.
    pub(super) fn print_uses(&self) {
        for found in self.uses.values().flatten() {
            println!("{}: {}", found.place, found.text);
        }
    }
}

/// A word of the prose, in lower case.
struct Token {
    text: String,
    line: usize,
    /// True if only space separates the word from the one before it.
    is_joined: bool,
    /// True if the word is the first of a doc comment.
    is_doc_start: bool,
}

/// Returns the index in [`WORDS`], the line and the text of every use.
fn uses(prose: &[ProseLine]) -> Vec<(usize, usize, String)> {
    let tokens = tokens(prose);
    let mut found = Vec::new();
    for start in 0..tokens.len() {
        for (at, word) in WORDS.iter().enumerate() {
            if let Some(text) = word.pattern.split('|').find_map(|pattern| matched(pattern, &tokens[start..]))
            {
                found.push((at, tokens[start].line, text));
            }
        }
    }
    found
}

/// Returns the matched text if `tokens` begin with the phrase.
fn matched(pattern: &str, tokens: &[Token]) -> Option<String> {
    let phrase = pattern.strip_prefix('^');
    if phrase.is_some() && !tokens.first()?.is_doc_start {
        return None;
    }
    let mut text = String::new();
    for (at, word) in phrase.unwrap_or(pattern).split(' ').enumerate() {
        let token = tokens.get(at)?;
        let is_equal = match word.strip_suffix('*') {
            Some(prefix) => token.text.starts_with(prefix),
            None => token.text == word,
        };
        if !is_equal || (at > 0 && !token.is_joined) {
            return None;
        }
        text.push_str(if at > 0 { " " } else { "" });
        text.push_str(&token.text);
    }
    Some(text)
}

fn tokens(prose: &[ProseLine]) -> Vec<Token> {
    let mut tokens: Vec<Token> = Vec::new();
    let mut is_quoted = false;
    let mut last_line = 0;
    for line in prose {
        let continues = line.line == last_line + 1 && line.kind != ProseKind::DocStart;
        last_line = line.line;
        if !continues {
            is_quoted = false;
        }
        let text = line.text.trim_start_matches(['!', ' ']);
        let mut is_doc_start = line.kind == ProseKind::DocStart;
        let mut is_joined = continues && !text.starts_with(['-', '*', '|', '#']);
        let mut word = String::new();
        for c in text.chars().chain([' ']) {
            if c == '`' {
                is_quoted = !is_quoted;
                is_joined = false;
                is_doc_start = false;
            } else if is_quoted {
                continue;
            } else if c.is_alphanumeric() || c == '-' || c == '_' {
                word.extend(c.to_lowercase());
                continue;
            }
            if !word.is_empty() {
                tokens.push(Token {
                    text: std::mem::take(&mut word),
                    line: line.line,
                    is_joined,
                    is_doc_start,
                });
                (is_joined, is_doc_start) = (true, false);
            }
            if c != ' ' {
                is_joined = false;
            }
        }
    }
    tokens
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(file: &str, text: &str) -> Vec<String> {
        let mut lint = WordLint::new();
        lint.add(Path::new(file), text);
        let found = lint.uses.into_values().flatten();
        found.map(|found| format!("{}: {}", found.place, found.text)).collect()
    }

    #[test]
    fn a_word_in_a_comment_is_found_at_its_line_and_not_in_a_string() {
        let text = "let a = \"whoever\";\n// Whoever leads.\nlet b = 1;\n";
        assert_eq!(findings("engine/src/x.rs", text), ["engine/src/x.rs:2: whoever"]);
    }

    #[test]
    fn a_phrase_is_found_across_a_line_break_but_not_across_punctuation() {
        assert_eq!(findings("x.rs", "// It waits for\n// good.\n"), ["x.rs:1: for good"]);
        assert_eq!(findings("x.rs", "// What it is for. Good.\n"), Vec::<String>::new());
        assert_eq!(findings("x.rs", "// for\nlet a = 1;\n// good\n"), Vec::<String>::new());
    }

    #[test]
    fn a_quoted_word_and_a_longer_word_are_not_found() {
        assert_eq!(findings("README.md", "the field `moment` and momentum\n"), Vec::<String>::new());
        assert_eq!(findings("README.md", "the moment\n"), ["README.md:1: moment"]);
    }

    #[test]
    fn only_the_first_word_of_a_doc_comment_must_be_a_noun() {
        assert_eq!(findings("x.rs", "/// What it is.\n"), ["x.rs:1: what"]);
        assert_eq!(
            findings("x.rs", "/// The name of\n/// what it is.\n// What for.\n//! What.\n"),
            Vec::<String>::new()
        );
    }

    #[test]
    fn pages_that_commands_write_are_not_read() {
        assert_eq!(findings("sim/MUTANTS.md", "planted\n"), Vec::<String>::new());
        assert_eq!(findings("spec/README.md", "planted\n").len(), 1);
    }

    #[test]
    fn a_banned_word_fails_and_a_ratchet_allows_its_number() {
        let mut lint = WordLint::new();
        let word = WORDS.iter().position(|word| word.pattern.starts_with("befall")).expect("it is banned");
        assert_eq!(WORDS[word].allowed, 0);
        lint.add(Path::new("x.rs"), "// It befalls a host.\n");
        let mut findings = Vec::new();
        lint.report(&mut findings);
        assert_eq!(findings, ["x.rs:1: befalls: use applies to, hits"]);
    }
}
