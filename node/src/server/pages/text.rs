//! Text of a page, for terminals and scripts.

use super::options::PageOptions;
use super::page::{BlockContent, PageBlock, PageCell, PageTable, RowsetPicture, WebPage, visible};

/// Returns the page as text.
pub fn render(page: &WebPage, options: &PageOptions) -> String {
    if let Some(raw) = &page.raw {
        return raw.clone();
    }
    let mut out = format!("{}\n", visible(&page.title));
    if let Some((severity, text)) = &page.verdict {
        out.push_str(&format!("{}: {}\n", severity.name(), visible(text)));
    }
    for block in &page.blocks {
        if !block.heading.is_empty() {
            out.push_str(&format!("\n{}\n", visible(&block.heading)));
        }
        add_block(block, options, &mut out);
    }
    out
}

fn add_block(block: &PageBlock, options: &PageOptions, out: &mut String) {
    match &block.content {
        BlockContent::Facts(facts) => {
            for fact in facts {
                out.push_str(&format!("{}: {}\n", fact.name, fact.value.plain()));
            }
        }
        BlockContent::Table(table) => add_table(table, options, out),
        BlockContent::Text(text) => {
            text.lines().for_each(|line| out.push_str(&format!("{}\n", visible(line))));
        }
        BlockContent::Picture(picture) => add_bars(picture, out),
    }
}

fn add_table(table: &PageTable, options: &PageOptions, out: &mut String) {
    let view = table.view(options);
    let mut lines = vec![table.columns.iter().map(|(_, heading)| (*heading).to_owned()).collect::<Vec<_>>()];
    lines.extend(view.rows.iter().map(|row| row.iter().map(PageCell::plain).collect()));
    let width = |at: usize| lines.iter().map(|line| line[at].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..table.columns.len()).map(width).collect();
    for line in &lines {
        let cells: Vec<String> =
            line.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        out.push_str(cells.join("  ").trim_end());
        out.push('\n');
    }
    if view.pages > 1 {
        out.push_str(&format!("page {} of {}, {} rows\n", view.page, view.pages, view.matching));
    }
}

fn add_bars(picture: &RowsetPicture, out: &mut String) {
    for bar in &picture.bars {
        let chosen = if bar.chosen { "  compacted next" } else { "" };
        out.push_str(&format!(
            "rowset {}: {:.3} to {:.3}, {} rows, {} bytes{chosen}\n",
            bar.rowset, bar.low, bar.high, bar.rows, bar.bytes
        ));
    }
}
