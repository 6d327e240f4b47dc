//! Names the shared library inside itself, so that programs linked with it by path find it by name.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let name = "libkimi_k3_inference";
    match std::env::var("CARGO_CFG_TARGET_OS").as_deref() {
        Ok("linux" | "android" | "freebsd" | "netbsd" | "openbsd") => {
            println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,{name}.so");
        }
        Ok("macos") => println!("cargo:rustc-cdylib-link-arg=-Wl,-install_name,@rpath/{name}.dylib"),
        _ => {}
    }
}
