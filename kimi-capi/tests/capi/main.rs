//! The library as C programs use it.
#![expect(unsafe_code, reason = "the interface is one of pointers")]

mod examples;
mod five_functions;
mod header;
mod misuse;
mod sessions;
mod support;
mod text;
mod threads;
