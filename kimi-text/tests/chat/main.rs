//! Conversations to ids and back.

mod conversations;
mod forgery;
mod goldens;
mod mistakes;
mod streams;
mod support;
