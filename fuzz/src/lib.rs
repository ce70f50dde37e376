//! What the fuzz targets share with the tests that replay their corpus.

pub mod laws;
