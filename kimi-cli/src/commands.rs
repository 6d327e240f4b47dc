//! One file per subcommand.

pub(crate) mod bench;
pub(crate) mod calibrate;
pub(crate) mod chat;
pub(crate) mod detokenize;
pub(crate) mod doctor;
pub(crate) mod eval;
pub(crate) mod inspect;
pub(crate) mod pack;
pub(crate) mod plan;
pub(crate) mod run;
pub(crate) mod synth;
pub(crate) mod tokenize;
pub(crate) mod unpack;
pub(crate) mod verify;
