//! Web pages: one typed value a page, rendered as HTML, text or JSON.
//!
//! ```text
//!   owner ──▶ WebPage: facts, tables, pictures ──options: sort, filter, page──▶ html.rs │ text.rs │ json.rs
//!   registry.rs: path ──▶ source of the page (masters, tablet servers, common_pages.rs)
//! ```
//!
//! - No JavaScript: sorting, filtering, paging and refreshing are links and one form.
//! - Names come from clients. Only `html.rs` writes HTML, by a template that escapes every value, and `page.rs` shows
//!   control and direction characters as `\u{…}`.
//! - Links are made from checked ids and addresses ([`page::PageLink`]), never from names.

pub mod common_pages;
pub mod html;
pub mod json;
pub mod list_headers;
pub mod options;
pub mod overview;
pub mod page;
pub mod pprof_page;
pub mod process_pages;
pub mod registry;
pub mod rpc_page;
pub mod startup_progress;
pub mod text;

#[cfg(test)]
mod tests;
