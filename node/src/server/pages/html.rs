//! HTML of a page, by `templates/page.html`, which escapes every value.

use askama::Template;

use super::options::{PageFormat, PageOptions};
use super::page::{BlockContent, PageBlock, PageCell, PageTable, RowsetPicture, WebPage, cut, visible};
use nyala_common::number_text;

/// Style sheet of all pages.
pub const STYLE: &str = include_str!("../../../templates/style.css");
/// Icon of all pages.
pub const ICON: &str = include_str!("../../../templates/icon.svg");

/// Frame around a page: names of the server and its menu.
pub struct PageFrame {
    /// Kind and id of the server.
    pub server: String,
    /// Path and name of each page in the menu.
    pub menu: Vec<(&'static str, &'static str)>,
    /// Path of the page.
    pub path: String,
}

#[derive(Template)]
#[template(path = "page.html")]
struct HtmlPage<'a> {
    title: String,
    frame: &'a PageFrame,
    style: String,
    icon: String,
    verdict: Option<(&'static str, String)>,
    refresh: Option<u32>,
    links: Vec<(&'static str, String)>,
    blocks: Vec<HtmlBlock>,
}

struct HtmlBlock {
    id: &'static str,
    heading: String,
    facts: Vec<(&'static str, HtmlCell)>,
    table: Option<HtmlTable>,
    text: Option<String>,
    picture: Option<HtmlPicture>,
}

struct HtmlTable {
    columns: Vec<HtmlColumn>,
    rows: Vec<Vec<HtmlCell>>,
    matching: usize,
    total: usize,
    page: usize,
    pages: usize,
    previous: Option<String>,
    next: Option<String>,
    /// Hidden fields of the filter's form, and the filter; `None` for a table that is short.
    form: Option<(Vec<(String, String)>, String)>,
}

struct HtmlColumn {
    heading: &'static str,
    link: String,
    /// `ascending`, `descending` or `none`.
    sorted: &'static str,
    number: bool,
}

struct HtmlCell {
    number: bool,
    items: Vec<HtmlItem>,
}

struct HtmlItem {
    class: &'static str,
    text: String,
    title: Option<String>,
    href: Option<String>,
}

struct HtmlPicture {
    height: usize,
    bars: Vec<HtmlBar>,
}

struct HtmlBar {
    x: String,
    y: usize,
    width: String,
    class: &'static str,
    title: String,
}

/// Returns the page as HTML.
pub fn render(page: &WebPage, options: &PageOptions, frame: &PageFrame) -> String {
    let reformatted = |format| PageOptions { format, refresh: None, ..options.clone() }.link();
    let refreshed = |refresh| PageOptions { refresh, ..options.clone() }.link();
    let html = HtmlPage {
        title: visible(&page.title),
        frame,
        style: static_path("style.css"),
        icon: static_path("icon.svg"),
        verdict: page.verdict.as_ref().map(|(severity, text)| (severity.name(), visible(text))),
        refresh: options.refresh,
        links: vec![
            ("text", reformatted(PageFormat::Text)),
            ("JSON", reformatted(PageFormat::Json)),
            match options.refresh {
                None => ("refresh every 5 s", refreshed(Some(5))),
                Some(_) => ("stop refreshing", refreshed(None)),
            },
        ],
        blocks: page.blocks.iter().map(|block| html_block(block, options)).collect(),
    };
    html.render().expect("writing into a string does not fail")
}

/// Rows from which on a table has a filter.
const FILTERED_ROWS_MIN: usize = 8;

fn html_block(block: &PageBlock, options: &PageOptions) -> HtmlBlock {
    let mut html = HtmlBlock {
        id: block.id,
        heading: visible(&block.heading),
        facts: Vec::new(),
        table: None,
        text: None,
        picture: None,
    };
    match &block.content {
        BlockContent::Facts(facts) => {
            html.facts = facts.iter().map(|fact| (fact.name, html_cell(&fact.value))).collect();
        }
        BlockContent::Table(table) => html.table = Some(html_table(table, options)),
        BlockContent::Text(text) => {
            let lines: Vec<String> = text.lines().map(visible).collect();
            html.text = Some(lines.join("\n"));
        }
        BlockContent::Picture(picture) => html.picture = Some(html_picture(picture)),
    }
    html
}

fn html_table(table: &PageTable, options: &PageOptions) -> HtmlTable {
    let view = table.view(options);
    let column = |(at, (id, heading)): (usize, &(&'static str, &'static str))| {
        let is_sorted = options.sort.as_deref() == Some(*id);
        let descending = is_sorted && !options.descending;
        let sort = Some((*id).to_owned());
        HtmlColumn {
            heading,
            link: PageOptions { sort, descending, page: 1, ..options.clone() }.link(),
            sorted: match (is_sorted, options.descending) {
                (false, _) => "none",
                (true, false) => "ascending",
                (true, true) => "descending",
            },
            number: table.rows.iter().any(|row| row[at].is_number()),
        }
    };
    let turned = |page| PageOptions { page, ..options.clone() }.link();
    let filtered = table.rows.len() >= FILTERED_ROWS_MIN || !options.filter.is_empty();
    HtmlTable {
        columns: table.columns.iter().enumerate().map(column).collect(),
        rows: view.rows.iter().map(|row| row.iter().map(html_cell).collect()).collect(),
        matching: view.matching,
        total: table.rows.len(),
        page: view.page,
        pages: view.pages,
        previous: (view.page > 1).then(|| turned(view.page - 1)),
        next: (view.page < view.pages).then(|| turned(view.page + 1)),
        form: filtered.then(|| (hidden_fields(options), options.filter.clone())),
    }
}

/// Returns the options that a filter keeps.
fn hidden_fields(options: &PageOptions) -> Vec<(String, String)> {
    let mut fields = options.params.clone();
    fields.extend(options.sort.clone().map(|sort| ("sort".to_owned(), sort)));
    fields.extend(options.descending.then(|| ("desc".to_owned(), "1".to_owned())));
    fields
}

fn html_cell(cell: &PageCell) -> HtmlCell {
    let items = match cell {
        PageCell::List(cells) => cells.iter().map(html_item).collect(),
        PageCell::Empty => Vec::new(),
        other => vec![html_item(other)],
    };
    HtmlCell { number: cell.is_number(), items }
}

fn html_item(cell: &PageCell) -> HtmlItem {
    let whole = cell.plain();
    let (text, rest) = cut(&whole);
    let (class, href) = match cell {
        PageCell::State(severity, _) => (severity.name(), None),
        PageCell::Link(link, _) => ("", Some(link.href().to_owned())),
        _ => ("", None),
    };
    HtmlItem { class, text, title: cell.exact().or_else(|| rest.map(str::to_owned)), href }
}

/// Width of a rowset picture and height of a line, in pixels.
const PICTURE_WIDTH: f64 = 1200.0;
const LINE_HEIGHT: usize = 15;

fn html_picture(picture: &RowsetPicture) -> HtmlPicture {
    let lines = picture.lines();
    let bar = |(bar, line): (&super::page::RowsetBar, &usize)| HtmlBar {
        x: format!("{:.1}", bar.low * PICTURE_WIDTH),
        y: line * LINE_HEIGHT,
        width: format!("{:.1}", ((bar.high - bar.low) * PICTURE_WIDTH).max(1.0)),
        class: if bar.chosen { "bar chosen" } else { "bar" },
        title: format!(
            "rowset {}: {} rows, {}, {} delta files",
            bar.rowset,
            bar.rows,
            number_text::bytes(bar.bytes),
            bar.delta_files
        ),
    };
    let height = (lines.iter().max().map_or(0, |line| line + 1) * LINE_HEIGHT).max(LINE_HEIGHT);
    HtmlPicture { height, bars: picture.bars.iter().zip(&lines).map(bar).collect() }
}

/// Returns the path of the style sheet and of the icon. It changes with their content, so that browsers may keep them.
pub fn static_path(name: &str) -> String {
    format!("/static/{:08x}/{name}", crc32c::crc32c(format!("{STYLE}{ICON}").as_bytes()))
}
