//! Packed models: matrices in tiles that carry their own description and checksum. `docs/formats.md` has the layout.

mod manifest;
mod tile;

pub(crate) use manifest::{
    BankInfo, FORMAT, FileInfo, JOURNAL_FILE, MANIFEST_FILE, Manifest, MatrixInfo, SourceInfo,
};
pub(crate) use tile::{
    BLOCK, HEADER_BYTES, MAX_TILE_BYTES, ROW_MULTIPLE, RecordLayout, Tile, TileCut, TileProblem, seal, seed,
};
