//! The page: a runbook is a section with its shell blocks.

/// One runbook of `node/RUNBOOKS.md`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Runbook {
    pub title: String,
    pub blocks: Vec<Block>,
}

/// One fenced shell block.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Block {
    /// Line of its first command, from 1.
    pub line: usize,
    pub script: String,
}

/// Returns the sections that have a shell block.
pub(super) fn runbooks(page: &str) -> Vec<Runbook> {
    let mut all: Vec<Runbook> = Vec::new();
    let mut open: Option<Block> = None;
    for (number, line) in (1..).zip(page.lines()) {
        match (&mut open, line) {
            (Some(_), "```") => {
                if let Some(book) = all.last_mut() {
                    book.blocks.extend(open.take());
                }
            }
            (Some(block), line) => block.script.push_str(&format!("{line}\n")),
            (None, "```sh") => open = Some(Block { line: number + 1, script: String::new() }),
            (None, line) => {
                let title = line.strip_prefix("## ").map(str::to_owned);
                all.extend(title.map(|title| Runbook { title, blocks: Vec::new() }));
            }
        }
    }
    all.retain(|book| !book.blocks.is_empty());
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_with_blocks_are_runbooks() {
        let page =
            "# All\n\n## One\ntext\n```sh\na\nb\n```\n## Text alone\n## Two\n```sh\nc\n```\n```sh\nd\n```\n";
        let block = |line, script: &str| Block { line, script: script.to_owned() };
        let book = |title: &str, blocks| Runbook { title: title.to_owned(), blocks };
        let expected =
            [book("One", vec![block(6, "a\nb\n")]), book("Two", vec![block(12, "c\n"), block(15, "d\n")])];
        assert_eq!(runbooks(page), expected);
    }
}
