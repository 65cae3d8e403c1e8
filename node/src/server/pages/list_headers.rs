//! Headers of a page with lists, for programs: JSON and text have the rows of one page.

use super::options::{PageFormat, PageOptions};
use super::page::{WebPage, page_count};

/// Returns the headers of a reply: the rows of the longest list, and the next page, if a list has further rows.
pub fn list_headers(page: &WebPage, options: &PageOptions) -> Vec<(&'static str, String)> {
    let has_pages = match options.format {
        PageFormat::Html => false,
        PageFormat::Text => page.raw.is_none(),
        PageFormat::Json => true,
    };
    let Some(rows) = page.matching_rows(options).filter(|_| has_pages) else { return Vec::new() };
    let mut headers = vec![("x-total-count", rows.to_string())];
    let number = options.page.max(1);
    if number < page_count(rows) {
        let next = PageOptions { page: number + 1, ..options.clone() };
        headers.push(("link", format!("<{}>; rel=\"next\"", next.link())));
    }
    headers
}
