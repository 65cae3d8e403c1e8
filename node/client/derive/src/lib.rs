//! `#[derive(ToRow)]` and `#[derive(FromRow)]` of `nyala-client`, for structs with named fields.
//!
//! ```text
//!   struct Person { id: i64, #[nyala(rename = "full_name")] name: Option<String> }
//!             │                         │
//!             ▼                         ▼
//!   COLUMNS = ["id",               "full_name"]      one column per field, in the order of the fields
//! ```
//!
//! Attributes of a field: `#[nyala(rename = "column")]` names its column, `#[nyala(skip)]` gives it none; a skipped
//! field is left unset by writes and gets its `Default` on reads. Not here: the traits, and conversions of values
//! (`nyala_client::rows`).

use proc_macro::TokenStream;
use proc_macro2::TokenStream as Tokens;
use quote::quote;
use syn::{Data, DeriveInput, Error, Field, Fields, LitStr, Result};

/// Implements `nyala_client::rows::ToRow`: the struct can be written as a row.
#[proc_macro_derive(ToRow, attributes(nyala))]
pub fn derive_to_row(input: TokenStream) -> TokenStream {
    expand(input, to_row)
}

/// Implements `nyala_client::rows::FromRow`: rows can be read as the struct.
#[proc_macro_derive(FromRow, attributes(nyala))]
pub fn derive_from_row(input: TokenStream) -> TokenStream {
    expand(input, from_row)
}

fn expand(input: TokenStream, implement: fn(&DeriveInput, &[RowField<'_>]) -> Tokens) -> TokenStream {
    let parsed = syn::parse::<DeriveInput>(input);
    let expanded = parsed.and_then(|input| Ok(implement(&input, &row_fields(&input)?)));
    expanded.unwrap_or_else(|error| error.to_compile_error()).into()
}

/// A field and its column; `None` for a skipped field.
struct RowField<'a> {
    field: &'a Field,
    column: Option<String>,
}

fn row_fields(input: &DeriveInput) -> Result<Vec<RowField<'_>>> {
    let Data::Struct(data) = &input.data else {
        return Err(Error::new_spanned(&input.ident, "a row is a struct with named fields"));
    };
    let Fields::Named(fields) = &data.fields else {
        return Err(Error::new_spanned(
            &input.ident,
            "a row is a struct with named fields: each is a column",
        ));
    };
    fields.named.iter().map(row_field).collect()
}

fn row_field(field: &Field) -> Result<RowField<'_>> {
    let name = field.ident.as_ref().expect("the field is named").to_string();
    let mut column = Some(name.strip_prefix("r#").unwrap_or(&name).to_string());
    for attribute in field.attrs.iter().filter(|attribute| attribute.path().is_ident("nyala")) {
        attribute.parse_nested_meta(|meta| {
            if meta.path.is_ident("rename") {
                column = Some(meta.value()?.parse::<LitStr>()?.value());
            } else if meta.path.is_ident("skip") {
                column = None;
            } else {
                return Err(meta.error("unknown attribute: use `rename = \"column\"` or `skip`"));
            }
            Ok(())
        })?;
    }
    Ok(RowField { field, column })
}

/// Returns the names of the columns.
fn columns(fields: &[RowField<'_>]) -> Tokens {
    let names = fields.iter().filter_map(|field| field.column.as_ref());
    quote! { const COLUMNS: &'static [&'static str] = &[#(#names),*]; }
}

fn to_row(input: &DeriveInput, fields: &[RowField<'_>]) -> Tokens {
    let (name, columns) = (&input.ident, columns(fields));
    let (generics, arguments, bounds) = input.generics.split_for_impl();
    let stored = fields.iter().filter(|field| field.column.is_some());
    let set = stored.enumerate().map(|(index, RowField { field, .. })| {
        let ident = &field.ident;
        quote! { row.set(#index, &self.#ident)?; }
    });
    quote! {
        #[automatically_derived]
        impl #generics ::nyala_client::rows::ToRow for #name #arguments #bounds {
            #columns

            fn to_row(
                &self,
                row: &mut ::nyala_client::rows::RowWriter<'_>,
            ) -> ::core::result::Result<(), ::nyala_client::ClientError> {
                #(#set)*
                ::core::result::Result::Ok(())
            }
        }
    }
}

fn from_row(input: &DeriveInput, fields: &[RowField<'_>]) -> Tokens {
    let (name, columns) = (&input.ident, columns(fields));
    let (generics, arguments, bounds) = input.generics.split_for_impl();
    let mut index = 0usize;
    let values = fields.iter().map(|RowField { field, column }| {
        let ident = &field.ident;
        if column.is_none() {
            return quote! { #ident: ::core::default::Default::default() };
        }
        let at = index;
        index += 1;
        quote! { #ident: row.get(#at)? }
    });
    let values: Vec<Tokens> = values.collect();
    quote! {
        #[automatically_derived]
        impl #generics ::nyala_client::rows::FromRow for #name #arguments #bounds {
            #columns

            fn from_row(
                row: &::nyala_client::rows::RowReader<'_>,
            ) -> ::core::result::Result<Self, ::nyala_client::ClientError> {
                ::core::result::Result::Ok(Self { #(#values),* })
            }
        }
    }
}
