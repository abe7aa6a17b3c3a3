"""Tokens over memory of Python, by ctypes. Prints ok; what goes wrong raises."""
import ctypes
import faulthandler
import os
import sys
import threading

faulthandler.enable()
lib = ctypes.CDLL(sys.argv[1], ctypes.RTLD_GLOBAL)
lib.cuobj_register_buffer.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
lib.cuobj_deregister_buffer.argtypes = [ctypes.c_void_p]
lib.cuobj_get_rdma_token.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int]
lib.cuobj_get_rdma_token.restype = ctypes.c_char_p
lib.cuobj_put_rdma_token.argtypes = [ctypes.c_char_p]
lib.penstock_cuobj_last_error.restype = ctypes.c_char_p


def good(condition):
    if not condition:
        raise RuntimeError(lib.penstock_cuobj_last_error())


def cycle(size):
    buffer = bytearray(size)
    view = (ctypes.c_char * size).from_buffer(buffer)
    address = ctypes.addressof(view)
    good(lib.cuobj_register_buffer(address, size) == 0)
    token = lib.cuobj_get_rdma_token(address, size, 0, 1)
    good(token and token.startswith(b"ps1:"))
    good(lib.cuobj_put_rdma_token(token) == 0)
    good(lib.cuobj_put_rdma_token(token) == 0)
    good(lib.cuobj_deregister_buffer(address) == 0)


good(lib.cuobj_available() == 1)
failures = []


def work():
    try:
        for i in range(20):
            cycle(1 + 999 * i)
    except Exception as e:  # in a thread it would be lost
        failures.append(e)


threads = [threading.Thread(target=work) for _ in range(8)]
for t in threads:
    t.start()
children = []
for _ in range(4):  # while the threads are inside the library
    pid = os.fork()
    if pid == 0:
        try:
            cycle(5000)
        except Exception as e:
            print("child: %s" % e, file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    children.append(pid)
for t in threads:
    t.join()
for pid in children:
    status = os.waitpid(pid, 0)[1]
    if status != 0:
        failures.append("child %d: %d" % (pid, status))
if failures:
    raise RuntimeError(failures)
print("ok")
