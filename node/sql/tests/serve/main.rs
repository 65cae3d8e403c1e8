//! `nyala-sql serve` and the shell in a terminal, in front of embedded clusters.

mod bed;
mod flight;
mod postgres;
mod secured;
mod terminal;
mod timeouts;
