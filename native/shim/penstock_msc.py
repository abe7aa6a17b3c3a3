"""Gives NVIDIA's multi-storage-client the tokens of the library that MSC_CUOBJ_SHIM names.

Its provider s3_cuobject takes tokens from functions of its extension module, which the published wheels do not have.
Imported before multistorageclient, this module puts the library's functions there; nothing of the installed package
changes. A file penstock_msc.pth in site-packages with the line "import penstock_msc" does that for every program.
Without MSC_CUOBJ_SHIM nothing happens.
"""

import ctypes
import os


def _load(name):
    library = ctypes.CDLL(name)
    pointer, size = ctypes.c_void_p, ctypes.c_size_t
    library.cuobj_register_buffer.argtypes = [pointer, size]
    library.cuobj_deregister_buffer.argtypes = [pointer]
    library.cuobj_get_rdma_token.argtypes = [pointer, size, size, ctypes.c_int]
    library.cuobj_get_rdma_token.restype = ctypes.c_char_p
    library.cuobj_put_rdma_token.argtypes = [ctypes.c_char_p]
    library.penstock_cuobj_last_error.restype = ctypes.c_char_p
    return library


def install(name):
    """Loads the library and offers its functions to the provider. They raise RuntimeError."""
    from multistorageclient_rust import multistorageclient_rust as extension

    library = _load(name)

    def refuse(what):
        raise RuntimeError("%s: %s" % (what, library.penstock_cuobj_last_error().decode()))

    def register(address, size):
        if library.cuobj_register_buffer(address, size) != 0:
            refuse("memory not registered")

    def deregister(address):
        if library.cuobj_deregister_buffer(address) != 0:
            refuse("memory not deregistered")

    def get(address, size, offset, is_put):
        token = library.cuobj_get_rdma_token(address, size, offset, 1 if is_put else 0)
        if not token:
            refuse("no token")
        return token.decode()

    def put(token):
        if library.cuobj_put_rdma_token(token.encode()) != 0:
            refuse("token not taken back")

    extension.cuobj_available = lambda: library.cuobj_available() == 1
    extension.cuobj_register_buffer = register
    extension.cuobj_deregister_buffer = deregister
    extension.cuobj_get_rdma_token = get
    extension.cuobj_put_rdma_token = put


if os.environ.get("MSC_CUOBJ_SHIM"):
    install(os.environ["MSC_CUOBJ_SHIM"])
