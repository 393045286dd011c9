"""Element types: conversion to narrow floats, and indices in 64 bits."""
