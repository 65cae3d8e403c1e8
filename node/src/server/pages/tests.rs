//! Pages from fixtures: their three renderings, options and hostile names.

use std::time::Duration;

use super::html::{self, PageFrame};
use super::list_headers::list_headers;
use super::options::{PageFormat, PageOptions};
use super::page::{
    BlockContent, PageBlock, PageCell, PageLink, PageTable, ROWS_PER_PAGE, RowsetBar, RowsetPicture,
    Severity, WebPage, cut, fact, server_link, visible,
};
use super::{common_pages, json, text};
use crate::server::flags::Flags;

const HOSTILE: [&str; 4] =
    ["\"><img src=x onerror=alert(1)>", "javascript:alert(1)", "\u{202e}evil\n", "</bdi><script>"];

fn fixture() -> WebPage {
    let columns =
        [("name", "Name"), ("state", "State"), ("rows", "Rows"), ("size", "On disk"), ("at", "Since")];
    let mut table = PageTable::new(&columns);
    for (at, name) in HOSTILE.iter().enumerate() {
        let link = PageLink::page("/table", &[("id", "&x")]);
        table.row(vec![
            PageCell::Link(link, (*name).to_owned()),
            PageCell::State(Severity::Warning, (*name).to_owned()),
            PageCell::Count(1000 * at as u64),
            PageCell::Bytes(3 << (10 * at)),
            PageCell::WallTime(1_795_000_000_000_000 + at as u64),
        ]);
    }
    let bar = |rowset, low, high, chosen| RowsetBar {
        rowset,
        low,
        high,
        rows: 10,
        bytes: 2048,
        delta_files: 1,
        chosen,
    };
    let bars = vec![bar(1, 0.0, 0.5, true), bar(2, 0.25, 1.0, false), bar(3, 0.5, 0.75, true)];
    let picture = BlockContent::Picture(RowsetPicture { bars });
    WebPage::new(HOSTILE[0])
        .verdict(Severity::Bad, HOSTILE[3])
        .with(PageBlock::facts(
            "facts",
            HOSTILE[2],
            vec![
                fact("time", "time", Duration::from_millis(1234)),
                fact("none", "none", PageCell::Empty),
                fact("list", "list", PageCell::List(HOSTILE.map(PageCell::from).to_vec())),
            ],
        ))
        .with(PageBlock::table("names", "Names", table))
        .with(PageBlock { id: "picture", heading: String::new(), content: picture })
        .with(PageBlock::text("lines", "Lines", HOSTILE.join("\n")))
}

fn frame() -> PageFrame {
    let menu = vec![("/", "Overview"), ("/tables", "Tables")];
    PageFrame { server: "master 07".to_owned(), menu, path: "/tables".to_owned() }
}

fn options(query: &str) -> PageOptions {
    PageOptions::parse(query).expect("a legal query")
}

#[test]
fn a_page_is_rendered_as_html() {
    let page = html::render(&fixture(), &options("sort=rows&refresh=5&id=%22x"), &frame());
    let page = page.replace(&html::static_path(""), "/static/<hash>/");
    insta::assert_snapshot!("html", page);
    for name in HOSTILE.iter().filter(|name| name.contains(['<', '\u{202e}'])) {
        assert!(!page.contains(name), "{name}");
    }
}

#[test]
fn a_page_is_rendered_as_text_and_json() {
    insta::assert_snapshot!("text", text::render(&fixture(), &options("raw")));
    let rendered = json::render(&fixture(), &options("format=json"));
    assert!(!rendered.contains('<'));
    let value: serde_json::Value = serde_json::from_str(&rendered).expect("JSON");
    assert_eq!(value["names"][0]["name"], HOSTILE[0]);
    insta::assert_snapshot!("json", serde_json::to_string_pretty(&value).expect("JSON"));
}

#[test]
fn tables_are_sorted_filtered_and_cut_into_pages() {
    let mut table = PageTable::new(&[("n", "N"), ("text", "Text")]);
    for n in 0..2 * ROWS_PER_PAGE as u64 + 1 {
        table.row(vec![PageCell::Count(n), PageCell::Text(format!("Row {n}"))]);
    }
    let first = |query: &str| {
        let options = options(query);
        let view = table.view(&options);
        (view.rows.first().map(|row| row[0].clone()), view.rows.len(), view.page, view.pages)
    };
    assert_eq!(first(""), (Some(PageCell::Count(0)), 1000, 1, 3));
    assert_eq!(first("sort=n&desc=1&page=3"), (Some(PageCell::Count(0)), 1, 3, 3));
    assert_eq!(first("sort=text&page=99").2, 3);
    assert_eq!(first("q=row+1999"), (Some(PageCell::Count(1999)), 1, 1, 1));
    assert_eq!(first("q=nothing"), (None, 0, 1, 1));
    assert_eq!(first("sort=unknown").0, Some(PageCell::Count(0)));
}

#[test]
fn a_program_reads_a_list_page_by_page_to_its_end() {
    let mut table = PageTable::new(&[("n", "N")]);
    for n in 0..2 * ROWS_PER_PAGE as u64 + 1 {
        table.row(vec![PageCell::Count(n)]);
    }
    let page = WebPage::new("Lists").with(PageBlock::table("long", "Long", table)).with(PageBlock::table(
        "short",
        "Short",
        PageTable::new(&[("n", "N")]),
    ));
    let answer = |query: &str| {
        let options = options(&format!("format=json&{query}"));
        let value: serde_json::Value = serde_json::from_str(&json::render(&page, &options)).expect("JSON");
        let rows = |table: &str| value[table].as_array().expect("an array").len();
        let headers = list_headers(&page, &options);
        let headers = headers.iter().map(|(name, value)| format!(", {name}: {value}")).collect::<String>();
        format!("{query}: {} and {} rows{headers}\n", rows("long"), rows("short"))
    };
    let queries = ["", "page=2&id=%26a", "page=3", "page=4", "page=18446744073709551615", "q=nothing"];
    expect_test::expect![[r#"
        : 1000 and 0 rows, x-total-count: 2001, link: <?format=json&page=2>; rel="next"
        page=2&id=%26a: 1000 and 0 rows, x-total-count: 2001, link: <?id=%26a&format=json&page=3>; rel="next"
        page=3: 1 and 0 rows, x-total-count: 2001
        page=4: 0 and 0 rows, x-total-count: 2001
        page=18446744073709551615: 0 and 0 rows, x-total-count: 2001
        q=nothing: 0 and 0 rows, x-total-count: 0
    "#]]
    .assert_eq(&queries.map(answer).concat());
    assert!(list_headers(&WebPage::new("Facts"), &options("format=json")).is_empty(), "there is no list");
}

#[test]
fn text_for_programs_has_the_link_of_the_next_page() {
    let mut table = PageTable::new(&[("n", "N")]);
    for n in 0..2 * ROWS_PER_PAGE as u64 + 1 {
        table.row(vec![PageCell::Count(n)]);
    }
    let mut page = WebPage::new("Lists").with(PageBlock::table("long", "Long", table));
    let last = |page: &WebPage, query: &str| list_headers(page, &options(query)).pop();
    assert_eq!(last(&page, "raw&page=2"), Some(("link", "<?format=text&page=3>; rel=\"next\"".to_owned())));
    assert_eq!(last(&page, "raw&page=3"), Some(("x-total-count", "2001".to_owned())));
    assert_eq!(last(&page, "page=2"), None, "people follow the links of the page");
    page.raw = Some(String::new());
    assert_eq!(last(&page, "raw&page=2"), None, "a form of its own has no pages");
}

#[test]
fn options_are_checked_and_become_links_again() {
    let all = options("id=%26a&sort=n&desc=1&q=a%20b&page=2&refresh=7&format=json");
    assert_eq!((all.format, all.descending, all.refresh), (PageFormat::Json, true, Some(7)));
    assert_eq!(all.link(), "?id=%26a&format=json&sort=n&desc=1&q=a%20b&page=2&refresh=7");
    assert_eq!(options(&all.link()[1..]), all);
    for bad in ["page=x", "refresh=0", "refresh=9999", "format=xml", "q=%zz"] {
        assert!(PageOptions::parse(bad).is_err(), "{bad}");
    }
}

#[test]
fn links_are_made_of_checked_addresses_only() {
    let href = |host: &str| PageLink::server(false, host, 8050, "/").map(|link| link.href().to_owned());
    assert_eq!(href("a-b.c").as_deref(), Some("http://a-b.c:8050/"));
    assert_eq!(href("::1").as_deref(), Some("http://[::1]:8050/"));
    for hostile in ["", "a/b", "a@b", "a b", "\"><", "javascript:alert(1)//", "[::1]"] {
        assert_eq!(href(hostile), None, "{hostile}");
        let cell = server_link(true, hostile, 1, "/", "x".to_owned());
        assert_eq!(cell, PageCell::Text("x".to_owned()));
    }
}

#[test]
fn names_are_shown_whole_and_harmless() {
    assert_eq!(visible("a\u{202e}b\u{0}c\u{200d}"), "a\\u{202e}b\\u{0}c\\u{200d}");
    let sloths = "\u{1f9a8}".repeat(257);
    let (shown, whole) = cut(&sloths);
    assert_eq!((shown.chars().count(), whole), (257, Some(sloths.as_str())));
    assert_eq!(cut("short"), ("short".to_owned(), None));
}

#[test]
fn rowsets_are_stacked_without_overlap() {
    let bar =
        |low, high| RowsetBar { rowset: 0, low, high, rows: 1, bytes: 1, delta_files: 0, chosen: false };
    let picture = |bars| RowsetPicture { bars };
    assert_eq!(picture(vec![bar(0.5, 1.0), bar(0.0, 0.5), bar(0.4, 0.6)]).lines(), [0, 0, 1]);
    assert_eq!(picture(vec![bar(0.5, 0.5), bar(0.5, 0.5)]).lines(), [0, 1], "two rowsets of the same key");
    assert!(picture(Vec::new()).lines().is_empty());
}

#[test]
fn secrets_are_not_shown() {
    let page = common_pages::settings(&Flags::new());
    let raw = page.raw.expect("Kudu's form");
    assert!(raw.starts_with("Non-default settings\n\nAll settings\n--"), "{raw}");
    assert!(raw.contains("\n--heartbeat_interval_ms="));
}
